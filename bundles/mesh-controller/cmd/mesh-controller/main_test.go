package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asProgram makes the test's own binary behave as the program, so that tests run the real thing as a process.
const asProgram = "MESH_CONTROLLER_TEST_AS_PROGRAM"

const secret = "hunter2-never-to-be-told"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// host is a folder with every file that the controller needs, and an environment that names them.
type host struct {
	folder string
	env    map[string]string
}

func newHost(t *testing.T) host {
	t.Helper()
	h := host{t.TempDir(), map[string]string{"MESH_LISTEN": "127.0.0.1:0"}}
	h.env["MESH_ADDRESS_FILE"] = filepath.Join(t.TempDir(), "address")
	for name, file := range map[string]string{
		"MESH_STORE_INVENTORY_FILE": "inventory", "MESH_STORE_IDENTITY_FILE": "identity", "MESH_STORE_LICENCES_FILE": "licences",
		"MESH_BROKER_MANAGEMENT_FILE": "broker-management", "MESH_BROKER_ADDRESS_FILE": "broker-address", "MESH_BUS_NATS_FILE": "bus",
	} {
		h.env[name] = h.write(t, file, secret+"\n")
	}
	h.env["MESH_BROKER_CERTIFICATE"] = h.write(t, "tls.crt", "-----BEGIN CERTIFICATE-----\nZGVtbw==\n-----END CERTIFICATE-----\n")
	for i, name := range []string{"STORE_INVENTORY", "STORE_IDENTITY", "STORE_LICENCES", "BROKER_MANAGEMENT", "BROKER_ADDRESS"} {
		h.env["MESH_"+name+"_PORT"] = fmt.Sprint(5432 + i)
	}
	return h
}

func (h host) write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(h.folder, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (h host) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self, args...)
	command.Env = []string{asProgram + "=1"}
	if testing.CoverMode() != "" {
		command.Env = append(command.Env, "GOCOVERDIR="+t.TempDir()) // else each process warns on stderr
	}
	for name, value := range h.env {
		command.Env = append(command.Env, name+"="+value)
	}
	return command
}

// run runs a command to its end.
func (h host) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	command := h.command(t, args...)
	command.Stdout, command.Stderr = &out, &err
	if failure := command.Run(); command.ProcessState == nil {
		t.Fatal(failure)
	}
	return command.ProcessState.ExitCode(), out.String(), err.String()
}

// process is a serve that runs.
type process struct {
	*exec.Cmd
	log *bytes.Buffer
}

// start starts a command and waits until its address file is there.
func (h host) start(t *testing.T, command *exec.Cmd) process {
	t.Helper()
	p := process{command, new(bytes.Buffer)}
	command.Stderr = p.log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() }) // a no-op where the test has stopped it
	for range 1000 {
		if _, err := os.Stat(h.env["MESH_ADDRESS_FILE"]); err == nil {
			return p
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = command.Process.Kill()
	_ = command.Wait()
	t.Fatalf("serve does not start: %s", p.log)
	return p
}

func (h host) address(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(h.env["MESH_ADDRESS_FILE"])
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

func (h host) get(t *testing.T, path string) (code int, body string) {
	t.Helper()
	return fetch(t, h.address(t), path)
}

func fetch(t *testing.T, address, path string) (code int, body string) {
	t.Helper()
	response, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

// stop sends a signal and returns the exit code.
func (p process) stop(t *testing.T, signal os.Signal) int {
	t.Helper()
	if err := p.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	return p.ProcessState.ExitCode()
}

func TestServeAnswersAndStopsCleanly(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			h := newHost(t)
			p := h.start(t, h.command(t, "serve"))
			if code, body := h.get(t, "/healthz"); code != 200 || body != "ok\n" {
				t.Errorf("found %d %s", code, body)
			}
			code, printed, _ := h.run(t, "status")
			if _, body := h.get(t, "/status"); code != 0 || printed != body || !json.Valid([]byte(printed)) {
				t.Errorf("status printed %d %s, /status answered %s", code, printed, body)
			}
			address := h.address(t)
			if code := p.stop(t, signal); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(p.log.String(), "address="+address) {
				t.Errorf("the log does not tell %s: %s", address, p.log)
			}
			if strings.Contains(p.log.String()+printed, secret) {
				t.Errorf("a secret was told: %s %s", p.log, printed)
			}
			if _, err := os.Stat(h.env["MESH_ADDRESS_FILE"]); !os.IsNotExist(err) {
				t.Errorf("the address file is still there: %v", err)
			}
			if _, err := net.Dial("tcp", address); err == nil {
				t.Error("somebody still listens")
			}
			if entries, _ := os.ReadDir(h.folder); len(entries) != 7 {
				t.Errorf("serve wrote into the state folder: %v", entries)
			}
		})
	}
}

func TestServeIsReadyOnceWhatIsMissingAppears(t *testing.T) {
	h := newHost(t)
	path := h.env["MESH_BUS_NATS_FILE"]
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p := h.start(t, h.command(t, "serve"))
	code, body := h.get(t, "/healthz")
	var found struct {
		Problems []struct{ Name, Problem string }
	}
	if err := json.Unmarshal([]byte(body), &found); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if code != 503 || len(found.Problems) != 1 || found.Problems[0].Name != "MESH_BUS_NATS_FILE" {
		t.Errorf("found %d %s", code, body)
	}
	if code, printed, _ := h.run(t, "status"); code != 0 || !strings.Contains(printed, `"ready": false`) {
		t.Errorf("status printed %d %s", code, printed)
	}
	h.write(t, "bus", secret)
	if code, body := h.get(t, "/healthz"); code != 200 {
		t.Errorf("found %d %s", code, body)
	}
	h.write(t, "controller.json", `{"schema": 9, "readable_from": 9}`)
	if code, body := h.get(t, "/healthz"); code != 503 || !strings.Contains(body, "needs a release that reads schema 9") {
		t.Errorf("found %d %s", code, body)
	}
	if code := p.stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestServeTellsSystemd(t *testing.T) {
	names := []string{filepath.Join(t.TempDir(), "notify")}
	if runtime.GOOS == "linux" {
		names = append(names, fmt.Sprintf("@mesh-controller-serve-test-%d", os.Getpid()))
	}
	for _, name := range names {
		socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		receive := func() string {
			buffer := make([]byte, 256)
			_ = socket.SetReadDeadline(time.Now().Add(10 * time.Second))
			count, err := socket.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			return string(buffer[:count])
		}
		h := newHost(t)
		h.env["NOTIFY_SOCKET"] = name
		p := h.start(t, h.command(t, "serve"))
		if told := receive(); told != "READY=1\nSTATUS=listening on "+h.address(t) {
			t.Errorf("found %q", told)
		}
		if code, _ := h.get(t, "/healthz"); code != 200 {
			t.Errorf("found %d", code)
		}
		code := p.stop(t, syscall.SIGTERM)
		if told := receive(); code != 0 || told != "STOPPING=1" {
			t.Errorf("found exit code %d, %q", code, told)
		}
	}
}

func TestServeTakesOverSystemdsSockets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, own := range []string{"", "127.0.0.1:0"} {
		h := newHost(t)
		h.env["MESH_LISTEN"] = own
		h.env["LISTEN_FDS"] = "1"
		program := h.command(t, "serve")
		command := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" serve`, program.Path)
		command.Env, command.ExtraFiles = program.Env, []*os.File{file}
		p := h.start(t, command)
		shared := listener.Addr().String()
		if code, body := fetch(t, shared, "/healthz"); code != 200 {
			t.Errorf("the shared socket answered %d %s", code, body)
		}
		if (own == "") != (h.address(t) == shared) {
			t.Errorf("MESH_LISTEN %q: told %s", own, h.address(t))
		}
		if code, body := h.get(t, "/healthz"); code != 200 {
			t.Errorf("%s answered %d %s", h.address(t), code, body)
		}
		if code := p.stop(t, syscall.SIGTERM); code != 0 {
			t.Errorf("exit code %d: %s", code, p.log)
		}
	}
}

func TestServeRefusesWhatSystemdDidNotOpen(t *testing.T) {
	h := newHost(t)
	h.env["LISTEN_FDS"] = "3"
	program := h.command(t, "serve")
	command := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" serve`, program.Path)
	command.Env = program.Env
	output, err := command.CombinedOutput()
	if err == nil || command.ProcessState.ExitCode() != 1 || !strings.Contains(string(output), "take over file 1 of 3") {
		t.Errorf("found %v %s", err, output)
	}
}

func TestServeAndStatusOnAUnixSocket(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(t.TempDir(), "s")
	h.env["MESH_LISTEN"] = "unix:" + path
	p := h.start(t, h.command(t, "serve"))
	for _, args := range [][]string{{"status"}, {"status", "--address", "unix:" + path}} {
		if code, printed, stderr := h.run(t, args...); code != 0 || !strings.Contains(printed, `"ready": true`) {
			t.Errorf("%v: found %d %s %s", args, code, printed, stderr)
		}
	}
	if code, _, stderr := h.run(t, "serve"); code != 1 || !strings.Contains(stderr, "another process answers there") {
		t.Errorf("a second one: found %d %s", code, stderr)
	}
	if code := p.stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestTheAddressFileOfASuccessorIsKept(t *testing.T) {
	h := newHost(t)
	p := h.start(t, h.command(t, "serve"))
	successor := []byte("127.0.0.1:1\n")
	if err := os.WriteFile(h.env["MESH_ADDRESS_FILE"], successor, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := p.stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if found, err := os.ReadFile(h.env["MESH_ADDRESS_FILE"]); err != nil || !bytes.Equal(found, successor) {
		t.Errorf("found %q, %v", found, err)
	}
}

func TestServeThatCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct{ name, value, problem string }{
		{"MESH_LISTEN", taken.Addr().String(), "address already in use"},
		{"MESH_LISTEN", "nonsense", `MESH_LISTEN: address "nonsense": expected host:port or unix:/path`},
		{"MESH_ADDRESS_FILE", "/nowhere/at/all", "MESH_ADDRESS_FILE: "},
		{"NOTIFY_SOCKET", "/nowhere/at/all", "tell systemd READY=1"},
	} {
		h := newHost(t)
		h.env[test.name] = test.value
		code, _, stderr := h.run(t, "serve")
		if code != 1 || !strings.Contains(stderr, test.problem) {
			t.Errorf("%s=%s: found %d %s", test.name, test.value, code, stderr)
		}
		if _, err := os.Stat(h.env["MESH_ADDRESS_FILE"]); !os.IsNotExist(err) {
			t.Errorf("%s=%s: an address was left", test.name, test.value)
		}
	}
}

func TestStatusWhenNobodyAnswers(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(other, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer other.Close()
	for _, test := range []struct {
		env     map[string]string
		args    []string
		problem string
	}{
		{nil, []string{"--address", "127.0.0.1:1"}, "no controller answers at 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused"},
		{nil, []string{"--address=unix:/nowhere"}, "no controller answers at unix:/nowhere: "},
		{map[string]string{"MESH_LISTEN": "127.0.0.1:1"}, nil, "no controller answers at 127.0.0.1:1: "},
		{map[string]string{"MESH_LISTEN": "127.0.0.1:1", "MESH_ADDRESS_FILE": "/nowhere"}, nil, "no controller answers at 127.0.0.1:1: "},
		{map[string]string{"MESH_ADDRESS_FILE": "/nowhere"}, nil, "no controller seems to run: MESH_ADDRESS_FILE: open /nowhere"},
		{nil, []string{"--address", other.Addr().String()}, "expected JSON, found something else"},
	} {
		code, stdout, stderr := host{env: test.env}.run(t, append([]string{"status"}, test.args...)...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, test.problem) {
			t.Errorf("%v %v: found %d %q %s", test.env, test.args, code, stdout, stderr)
		}
	}
}

func TestPrepareTellsAllThatIsMissingAndWritesNothing(t *testing.T) {
	h := newHost(t)
	delete(h.env, "MESH_STORE_IDENTITY_PORT")
	h.env["MESH_BROKER_ADDRESS_PORT"] = "many"
	h.write(t, "licences", "")
	if err := os.Remove(h.env["MESH_BUS_NATS_FILE"]); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := h.run(t, "prepare")
	expected := fmt.Sprintf(`mesh-controller: prepare: 4 problems, nothing written:
  MESH_STORE_LICENCES_FILE: file %[1]s/licences: is empty
  MESH_BUS_NATS_FILE: file %[1]s/bus: no such file or directory
  MESH_STORE_IDENTITY_PORT: is not set; expected a port
  MESH_BROKER_ADDRESS_PORT: is "many"; expected a port from 1 to 65535
`, h.folder)
	if code != 1 || stdout != "" || stderr != expected {
		t.Errorf("found %d %q %s", code, stdout, stderr)
	}
	if entries, _ := os.ReadDir(h.folder); len(entries) != 6 {
		t.Errorf("something was written: %v", entries)
	}
}

func TestPrepareIsIdempotent(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(h.folder, "controller.json")
	var first []byte
	for _, done := range []string{"created", "kept"} {
		code, stdout, stderr := h.run(t, "prepare")
		if code != 0 || stdout != "prepared: "+done+" "+path+"\n" || stderr != "" {
			t.Errorf("found %d %q %s", code, stdout, stderr)
		}
		content, err := os.ReadFile(path)
		if err != nil || first != nil && !bytes.Equal(first, content) {
			t.Errorf("found %s, %v", content, err)
		}
		first = content
	}
}

func TestUsage(t *testing.T) {
	tests := []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{nil, 2, "", "a command is needed"},
		{[]string{"--help"}, 0, "Usage: mesh-controller COMMAND", ""},
		{[]string{"help"}, 0, "Usage: mesh-controller COMMAND", ""},
		{[]string{"serve", "--help"}, 0, "Usage: mesh-controller COMMAND", ""},
		{[]string{"version"}, 0, "mesh-controller 1 " + runtime.Version(), ""},
		{[]string{"--version"}, 0, "mesh-controller 1 " + runtime.Version(), ""},
		{[]string{"version", "x"}, 2, "", "version: unexpected x"},
		{[]string{"nodes"}, 2, "", `"nodes" is a tool that the manifest declares, but this release does not have it yet`},
		{[]string{"sreve"}, 2, "", `unknown command "sreve"; expected serve, prepare, status or version`},
		{[]string{"serve", "now"}, 2, "", "serve: unexpected now"},
		{[]string{"prepare", "--force"}, 2, "", "prepare: flag provided but not defined: -force"},
		{[]string{"status", "--address"}, 2, "", "status: flag needs an argument: -address"},
		{[]string{"status", "--address", "8420"}, 2, "", `status: --address "8420": expected host:port`},
	}
	for _, test := range tests {
		code, stdout, stderr := host{}.run(t, test.args...)
		if code != test.code || !strings.Contains(stdout, test.stdout) ||
			!strings.Contains(stderr, test.stderr) || (test.stdout == "") != (stdout == "") || (test.stderr == "") != (stderr == "") {
			t.Errorf("%q: found %d\n%s\n%s", test.args, code, stdout, stderr)
		}
	}
}

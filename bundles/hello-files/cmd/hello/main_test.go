package main

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mesh.example/hello-files/internal/greet"
)

// unpack builds the program into a folder that looks like the unpacked bundle, with the stamps that the build gives.
func unpack(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	stamps := "-X main.module=hello-files -X main.version=1.2.3-test"
	build := exec.Command("go", "build", "-ldflags", stamps, "-o", filepath.Join(folder, "hello"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	for _, name := range []string{"share", "etc", "libexec"} {
		if err := os.CopyFS(filepath.Join(folder, name), os.DirFS(filepath.Join("../..", name))); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestTheProgramWithItsFilesBesideIt(t *testing.T) {
	folder := unpack(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(folder, "hello"), link); err != nil {
		t.Fatal(err)
	}
	hello := filepath.Join(folder, "hello")
	for _, test := range []struct {
		command  []string
		code     int
		expected string
	}{
		{[]string{hello}, 0, "Hello, world!\n"},
		{[]string{link, "Ada", "Lovelace"}, 0, "Hello, Ada Lovelace!\n"},
		{[]string{hello, "--style", "formal/letter", "Ada"}, 0, "Dear Ada, welcome.\n"},
		{[]string{hello, "--", "serve"}, 0, "Hello, serve!\n"},
		{[]string{hello, "--version"}, 0, "hello-files 1.2.3-test\n"},
		{[]string{hello, "--styles"}, 0, "formal/letter\ngerman\nplain\n"},
		{[]string{hello, "--help"}, 0, usage},
		{[]string{hello, "--loud"}, 2, "hello: wrong usage: flag provided but not defined: -loud\nSee hello --help.\n"},
		{[]string{hello, "--style", "loud"}, 1,
			"hello: style \"loud\": there is no such style; expected one of formal/letter, german, plain\n"},
		{[]string{filepath.Join(folder, "libexec/greet-all"), "Ada"}, 0, "Dear Ada, welcome.\nGrüß dich, Ada!\nHello, Ada!\n"},
	} {
		command := exec.Command(test.command[0], test.command[1:]...)
		command.Dir = t.TempDir() // the files are found from the program, not from the working folder
		output, err := command.CombinedOutput()
		if command.ProcessState == nil {
			t.Fatal(err)
		}
		if code := command.ProcessState.ExitCode(); code != test.code || string(output) != test.expected {
			t.Errorf("%q: found %d %q", test.command[1:], code, output)
		}
	}
}

func TestServeAnswersAndStopsCleanly(t *testing.T) {
	command := exec.Command(filepath.Join(unpack(t), "hello"), "serve")
	command.Env = []string{"HELLO_LISTEN=127.0.0.1:0"}
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() }) // a no-op where the test has stopped it
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, address, _ := strings.Cut(line, "address=")
	address, _, _ = strings.Cut(address, " ")
	response, err := http.Get("http://" + address + "/?style=german&name=" + url.QueryEscape("<b>"))
	if err != nil {
		t.Fatal(err)
	}
	content, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if string(content) != "Grüß dich, <b>!\n" || response.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("found %q, %v", content, response.Header)
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}

func TestHandler(t *testing.T) {
	whole, err := greet.Open("../..", "")
	if err != nil {
		t.Fatal(err)
	}
	empty, err := greet.Open(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		greeter      *greet.Greeter
		method, path string
		code         int
		body         string
	}{
		{whole, "GET", "/", 200, "Hello, world!\n"},
		{whole, "GET", "/healthz", 200, "ok\n"},
		{whole, "GET", "/?style=../etc/hello", 400, "style"},
		{whole, "POST", "/", 405, ""},
		{whole, "GET", "/else", 404, ""},
		{empty, "GET", "/healthz", 503, "there is no such style"},
	} {
		recorder := httptest.NewRecorder()
		handler(test.greeter).ServeHTTP(recorder, httptest.NewRequest(test.method, test.path, nil))
		if recorder.Code != test.code || !strings.Contains(recorder.Body.String(), test.body) {
			t.Errorf("%s %s: found %d %q", test.method, test.path, recorder.Code, recorder.Body)
		}
	}
}

package listen

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	tests := []struct{ address, network, rest, problem string }{
		{"127.0.0.1:8420", "tcp", "127.0.0.1:8420", ""},
		{"[::1]:0", "tcp", "[::1]:0", ""},
		{":80", "tcp", ":80", ""},
		{"unix:/run/a b.sock", "unix", "/run/a b.sock", ""},
		{"unix:relative", "", "", "expected an absolute path after unix:"},
		{"unix:", "", "", "expected an absolute path after unix:"},
		{"", "", "", "expected host:port or unix:/path"},
		{"8420", "", "", "expected host:port or unix:/path"},
		{"127.0.0.1:65536", "", "", "expected a port from 0 to 65535"},
		{"127.0.0.1:http", "", "", "expected a port from 0 to 65535"},
	}
	for _, test := range tests {
		network, rest, err := Split(test.address)
		if network != test.network || rest != test.rest {
			t.Errorf("%q: found %q %q", test.address, network, rest)
		}
		expectProblem(t, test.address, err, test.problem)
	}
}

func TestOpenTellsTheActualAddress(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "s")} {
		listener, err := Open(address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		network, target, err := Split(Address(listener))
		if err != nil {
			t.Fatal(err)
		}
		connection, err := net.Dial(network, target)
		if err != nil {
			t.Fatalf("%s: %v", Address(listener), err)
		}
		connection.Close()
	}
}

func TestASocketThatAKilledProcessLeftIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	left, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	listener, err := Open("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
}

func TestWhatIsInUseIsLeftAlone(t *testing.T) {
	folder := t.TempDir()
	answered := filepath.Join(folder, "s")
	listener, err := net.Listen("unix", answered)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, err = Open("unix:" + answered)
	expectProblem(t, answered, err, "another process answers there")
	if connection, err := net.Dial("unix", answered); err != nil {
		t.Errorf("the other process lost its socket: %v", err)
	} else {
		connection.Close()
	}

	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open("unix:" + file)
	expectProblem(t, file, err, "something else than a socket is there")
	if content, _ := os.ReadFile(file); string(content) != "precious" {
		t.Errorf("the file holds %q", content)
	}
}

func TestInheritedIsForThisProcessAlone(t *testing.T) {
	tests := []struct{ pid, count, problem string }{
		{"", "", ""},
		{"", "1", ""},
		{"41", "1", ""},
		{"42", "0", ""},
		{"42", "", `LISTEN_FDS is ""; expected a number of sockets`},
		{"42", "-1", `LISTEN_FDS is "-1"; expected a number of sockets`},
	}
	for _, test := range tests {
		env := map[string]string{"LISTEN_PID": test.pid, "LISTEN_FDS": test.count}
		listeners, err := Inherited(func(name string) string { return env[name] }, 42)
		if len(listeners) != 0 {
			t.Errorf("%v: found %v", test, listeners)
		}
		expectProblem(t, test.pid+" "+test.count, err, test.problem)
	}
}

func expectProblem(t *testing.T, title string, err error, problem string) {
	t.Helper()
	if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
		t.Errorf("%q: expected problem %q, found %v", title, problem, err)
	}
}

package notify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

func TestSystemdIsTold(t *testing.T) {
	names := []string{filepath.Join(t.TempDir(), "notify")}
	if runtime.GOOS == "linux" {
		names = append(names, fmt.Sprintf("@mesh-controller-test-%d", os.Getpid()))
	}
	for _, name := range names {
		socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		for _, state := range []string{Ready + "\nSTATUS=well", Stopping} {
			if err := Send(name, state); err != nil {
				t.Fatal(err)
			}
			buffer := make([]byte, 256)
			_ = socket.SetReadDeadline(time.Now().Add(5 * time.Second))
			count, err := socket.Read(buffer)
			if err != nil || string(buffer[:count]) != state {
				t.Errorf("%s: expected %q, found %q, %v", name, state, buffer[:count], err)
			}
		}
	}
}

func TestWithoutSystemdNothingIsTold(t *testing.T) {
	if err := Send("", Ready); err != nil {
		t.Error(err)
	}
}

func TestASocketThatIsNotThere(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "nothing"), "relative", "vsock:2:1"} {
		if err := Send(name, Ready); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

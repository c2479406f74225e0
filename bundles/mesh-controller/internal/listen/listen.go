// Package listen opens the sockets that the controller answers on, and takes over those that systemd opened.
package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	unixPrefix = "unix:"
	// firstInherited is the number of the first file that systemd hands over (sd_listen_fds(3)).
	firstInherited = 3
)

// Split turns an address as settings write it, `host:port` or `unix:/path`, into a network and its address.
func Split(address string) (network, rest string, err error) {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		if !strings.HasPrefix(path, "/") {
			return "", "", fmt.Errorf("address %q: expected an absolute path after %s", address, unixPrefix)
		}
		return "unix", path, nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", fmt.Errorf("address %q: expected host:port or %s/path", address, unixPrefix)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("address %q: expected a port from 0 to 65535, found %q", address, port)
	}
	return "tcp", address, nil
}

// Address is where a listener answers, in the form that Split reads.
func Address(listener net.Listener) string {
	address := listener.Addr()
	if address.Network() == "unix" {
		return unixPrefix + address.String()
	}
	return address.String()
}

// Open listens on an address. A unix socket's path that a killed process left behind is taken over; one that is
// answered, or that is no socket, is not.
func Open(address string) (net.Listener, error) {
	network, rest, err := Split(address)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		if err := removeStale(rest); err != nil {
			return nil, err
		}
	}
	return net.Listen(network, rest)
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("listen on %s%s: something else than a socket is there", unixPrefix, path)
	}
	connection, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = connection.Close()
		return fmt.Errorf("listen on %s%s: another process answers there", unixPrefix, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen on %s%s: is another process there? %w", unixPrefix, path, err)
	}
	return os.Remove(path)
}

// Inherited returns the listeners that systemd opened for this process, none if it opened none. The protocol is that
// of sd_listen_fds(3): LISTEN_FDS files from number 3 on, meant for the process LISTEN_PID.
func Inherited(getenv func(string) string, pid int) ([]net.Listener, error) {
	if getenv("LISTEN_PID") != strconv.Itoa(pid) {
		return nil, nil
	}
	count, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || count < 0 {
		return nil, fmt.Errorf("LISTEN_FDS is %q; expected a number of sockets", getenv("LISTEN_FDS"))
	}
	var listeners []net.Listener
	for fd := firstInherited; fd < firstInherited+count; fd++ {
		listener, err := inherit(fd)
		if err != nil {
			for _, opened := range listeners {
				_ = opened.Close()
			}
			return nil, fmt.Errorf("take over file %d of %d from systemd: %w", fd-firstInherited+1, count, err)
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

// inherit makes a listener of an open file, and closes the file: the listener has its own copy.
func inherit(fd int) (net.Listener, error) {
	file := os.NewFile(uintptr(fd), "systemd socket "+strconv.Itoa(fd))
	if file == nil {
		return nil, errors.New("it is not open")
	}
	listener, err := net.FileListener(file)
	return listener, errors.Join(err, file.Close())
}

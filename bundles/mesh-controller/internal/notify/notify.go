// Package notify tells systemd how a service is doing: the protocol of sd_notify(3).
package notify

import (
	"fmt"
	"net"
	"time"
)

const timeout = 5 * time.Second

// What systemd is told.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
)

// Send writes a state to the socket that NOTIFY_SOCKET names, and does nothing where that is empty. A name that starts
// with @ is one of Linux's abstract namespace.
func Send(socket, state string) error {
	if socket == "" {
		return nil
	}
	if socket[0] != '/' && socket[0] != '@' {
		return fmt.Errorf("NOTIFY_SOCKET is %q; expected an absolute path or a name that starts with @", socket)
	}
	connection, err := net.DialTimeout("unixgram", socket, timeout)
	if err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	defer connection.Close() // nothing is buffered
	if err := connection.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	if _, err := connection.Write([]byte(state)); err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	return nil
}

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"mesh.example/controller/internal/atomicfile"
	"mesh.example/controller/internal/inputs"
	"mesh.example/controller/internal/listen"
	"mesh.example/controller/internal/notify"
	"mesh.example/controller/internal/server"
	"mesh.example/controller/internal/state"
)

const (
	defaultAddress = "127.0.0.1:8420"
	// drain is how long open requests may go on after SIGTERM; systemd kills after 90 s.
	drain = 10 * time.Second
)

func serve(p program, args []string) error {
	if err := parse(flag.NewFlagSet("serve", flag.ContinueOnError), args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	since := time.Now()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	listeners, err := openListeners(p.getenv)
	if err != nil {
		return err
	}
	address := listen.Address(listeners[0])
	forget, err := publishAddress(p.getenv("MESH_ADDRESS_FILE"), address)
	if err != nil {
		closeAll(listeners)
		return err
	}
	for _, listener := range listeners {
		log.Info("listening", "address", listen.Address(listener), "version", p.declared.Version)
	}
	for _, problem := range p.status(since).Problems {
		log.Warn("not ready", "name", problem.Name, "problem", problem.Problem)
	}
	notifySocket := p.getenv("NOTIFY_SOCKET")
	if err := notify.Send(notifySocket, notify.Ready+"\nSTATUS=listening on "+address); err != nil {
		closeAll(listeners)
		return errors.Join(err, forget())
	}
	stopping := func() {
		stop() // a second signal ends the process at once
		log.Info("stopping")
		if err := notify.Send(notifySocket, notify.Stopping); err != nil {
			log.Warn("systemd does not know of the stop", "error", err) // stopping matters more
		}
	}
	handler := server.Handler(func() server.Status { return p.status(since) })
	err = server.Run(ctx, handler, listeners, drain, stopping, log)
	if err := errors.Join(err, forget()); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// openListeners returns the one of MESH_LISTEN, which is first, and those that systemd opened; without either the
// default one. With both, a host can ask this very process for its health while others share the sockets.
func openListeners(getenv func(string) string) ([]net.Listener, error) {
	inherited, err := listen.Inherited(getenv, os.Getpid())
	if err != nil {
		return nil, err
	}
	address := getenv("MESH_LISTEN")
	if address == "" && len(inherited) > 0 {
		return inherited, nil
	}
	if address == "" {
		address = defaultAddress
	}
	own, err := listen.Open(address)
	if err != nil {
		closeAll(inherited)
		return nil, fmt.Errorf("MESH_LISTEN: %w", err)
	}
	return append([]net.Listener{own}, inherited...), nil
}

func closeAll(listeners []net.Listener) {
	for _, listener := range listeners {
		_ = listener.Close() // the process is about to end with the error that brought it here
	}
}

// publishAddress writes the address to a file, if one is named. The function that it returns removes the file, unless
// a successor has written its own address meanwhile.
func publishAddress(path, address string) (forget func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	content := []byte(address + "\n")
	if err := atomicfile.Replace(path, content, 0o644); err != nil {
		return nil, fmt.Errorf("MESH_ADDRESS_FILE: %w", err)
	}
	return func() error {
		found, err := os.ReadFile(path)
		if err == nil && bytes.Equal(found, content) {
			err = os.Remove(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}, nil
}

// status looks at every input and at the state file. A state folder that isn't prepared is no problem.
func (p program) status(since time.Time) server.Status {
	report := inputs.Check(p.getenv)
	problems := report.Problems()
	found := state.State{}
	if folder := state.Folder(p.getenv); folder != "" {
		var err error
		if found, err = state.Read(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, inputs.Problem{Name: state.FileName, Problem: err.Error()})
		}
	}
	return server.Status{
		Module:      p.declared.Module,
		Version:     p.declared.Version,
		Since:       since.UTC().Truncate(time.Second),
		Ready:       len(problems) == 0,
		StateSchema: found.Schema,
		Problems:    problems,
		Report:      report,
	}
}

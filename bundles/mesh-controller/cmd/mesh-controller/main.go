// Command mesh-controller is the mesh's controller: it watches over the files and ports that its host gives it, and
// answers for its own health and status.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	controller "mesh.example/controller"
)

// Exit codes, as docs/controller.md lists them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `mesh-controller is the mesh's controller.

Usage: mesh-controller COMMAND

Commands:
  serve     answer /healthz and /status until SIGTERM or SIGINT
  prepare   check what serve needs, tell all that is missing, create the state file
  status    ask the controller that is running, and print its status as JSON
  version   print the version

Example: mesh-controller status --address 127.0.0.1:8420

Environment:
  MESH_LISTEN         where serve answers: host:port or unix:/path (127.0.0.1:8420)
  MESH_ADDRESS_FILE   serve writes its actual address there; status reads it
  NOTIFY_SOCKET, LISTEN_FDS, LISTEN_PID: set by systemd
  The files and ports that the manifest names, all needed: see docs/controller.md

Exit codes: 0 done, 1 failed, 2 wrong usage.
`

// program is the world that a command runs in.
type program struct {
	getenv         func(string) string
	stdout, stderr io.Writer
	declared       controller.Declaration
}

// command takes its arguments, and returns an error to tell; a usageError means exit code 2.
type command func(p program, args []string) error

var commands = map[string]command{
	"serve":   serve,
	"prepare": prepare,
	"status":  status,
	"version": version,
}

type usageError struct{ error }

func main() {
	p := program{os.Getenv, os.Stdout, os.Stderr, controller.Declared()}
	os.Exit(p.run(os.Args[1:]))
}

func (p program) run(args []string) int {
	err := p.dispatch(args)
	_, wrongUsage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.stdout, usage)
		return exitOK
	case wrongUsage:
		fmt.Fprintf(p.stderr, "mesh-controller: %v\nSee mesh-controller --help.\n", err)
		return exitUsage
	default:
		fmt.Fprintf(p.stderr, "mesh-controller: %v\n", err)
		return exitFailed
	}
}

func (p program) dispatch(args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("a command is needed: serve, prepare, status or version")}
	}
	name := args[0]
	switch name {
	case "help", "-h", "-help", "--help":
		return flag.ErrHelp
	case "--version":
		name = "version"
	}
	if run, ok := commands[name]; ok {
		return run(p, args[1:])
	}
	if slices.Contains(p.declared.Tools, name) {
		return usageError{fmt.Errorf("%q is a tool that the manifest declares, but this release does not have it yet", name)}
	}
	return usageError{fmt.Errorf("unknown command %q; expected serve, prepare, status or version", name)}
}

// parse reads a command's flags; nothing may follow them.
func parse(flags *flag.FlagSet, args []string) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return usageError{fmt.Errorf("%s: %w", flags.Name(), err)}
	case flags.NArg() > 0:
		return usageError{fmt.Errorf("%s: unexpected %s", flags.Name(), strings.Join(flags.Args(), " "))}
	}
	return nil
}

func version(p program, args []string) error {
	if err := parse(flag.NewFlagSet("version", flag.ContinueOnError), args); err != nil {
		return err
	}
	_, err := fmt.Fprintf(p.stdout, "%s %s %s %s/%s\n",
		p.declared.Module, p.declared.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

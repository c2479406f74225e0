// Command hello greets, in the style of a template that lies beside it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"mesh.example/hello-files/internal/greet"
)

// What the build stamps into the program.
var (
	module  = "hello-files"
	version = "unstamped"
)

const usage = `hello greets.

Usage: hello [--style STYLE] [NAME...]
       hello serve
       hello --styles | --version | --help

Example: hello --style formal/letter Ada

Environment:
  HELLO_LISTEN      where serve answers (127.0.0.1:8430)
  HELLO_TEMPLATES   a folder of templates that win over those of the program
`

func main() {
	err := run(os.Args[1:], os.Getenv, os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "hello: %v\nSee hello --help.\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "hello: %v\n", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage")

func run(args []string, getenv func(string) string, stdout io.Writer) error {
	flags := flag.NewFlagSet("hello", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	style := flags.String("style", "", "")
	styles := flags.Bool("styles", false, "")
	showVersion := flags.Bool("version", false, "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(stdout, usage)
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if *showVersion {
		_, err := fmt.Fprintln(stdout, module, version)
		return err
	}
	folder, err := greet.Beside()
	if err != nil {
		return err
	}
	greeter, err := greet.Open(folder, getenv("HELLO_TEMPLATES"))
	if err != nil {
		return err
	}
	if *styles {
		return list(greeter, stdout)
	}
	if len(args) == 1 && args[0] == "serve" {
		return serve(greeter, getenv("HELLO_LISTEN"))
	}
	greeting, err := greeter.Greet(*style, strings.Join(flags.Args(), " "))
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, greeting)
	return err
}

func list(greeter *greet.Greeter, stdout io.Writer) error {
	styles, err := greeter.Styles()
	if err != nil {
		return err
	}
	for _, style := range styles {
		if _, err := fmt.Fprintln(stdout, style); err != nil {
			return err
		}
	}
	return nil
}

// Command hello-admin looks after the templates and settings of hello.
package main

import (
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

const usage = `hello-admin looks after the templates and settings of hello.

Usage: hello-admin check       check the settings and every template
       hello-admin list        list the styles, each with an example
       hello-admin --version | --help

Environment:
  HELLO_TEMPLATES   a folder of templates that win over those of the program
`

func main() {
	if len(os.Args) != 2 {
		fail(2, "expected one command\n"+usage)
	}
	var err error
	switch os.Args[1] {
	case "check":
		err = withGreeter(check, os.Stdout)
	case "list":
		err = withGreeter(list, os.Stdout)
	case "--version":
		_, err = fmt.Println(module, version)
	case "--help", "-h":
		_, err = fmt.Print(usage)
	default:
		fail(2, fmt.Sprintf("unknown command %q\n%s", os.Args[1], usage))
	}
	if err != nil {
		fail(1, err.Error()+"\n")
	}
}

func fail(code int, message string) {
	fmt.Fprintf(os.Stderr, "hello-admin: %s", message)
	os.Exit(code)
}

func withGreeter(do func(*greet.Greeter, io.Writer) error, stdout io.Writer) error {
	folder, err := greet.Beside()
	if err != nil {
		return err
	}
	greeter, err := greet.Open(folder, os.Getenv("HELLO_TEMPLATES"))
	if err != nil {
		return err
	}
	return do(greeter, stdout)
}

func check(greeter *greet.Greeter, stdout io.Writer) error {
	if err := greeter.Check(); err != nil {
		return err
	}
	styles, err := greeter.Styles()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "all is well: %d styles, %s is the default\n", len(styles), greeter.Settings.Style)
	return err
}

func list(greeter *greet.Greeter, stdout io.Writer) error {
	styles, err := greeter.Styles()
	if err != nil {
		return err
	}
	for _, style := range styles {
		greeting, err := greeter.Greet(style, "")
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stdout, "%-16s%s\n", style, strings.TrimSpace(greeting)); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh.example/hello-files/internal/greet"
)

func open(t *testing.T, own string) *greet.Greeter {
	t.Helper()
	greeter, err := greet.Open("../..", own)
	if err != nil {
		t.Fatal(err)
	}
	return greeter
}

func TestCheck(t *testing.T) {
	var stdout bytes.Buffer
	if err := check(open(t, ""), &stdout); err != nil || stdout.String() != "all is well: 3 styles, plain is the default\n" {
		t.Errorf("found %q, %v", stdout.String(), err)
	}
}

func TestCheckOfATemplateThatFails(t *testing.T) {
	own := t.TempDir()
	if err := os.WriteFile(filepath.Join(own, "plain.tmpl"), []byte("{{.Age}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	err := check(open(t, own), &stdout)
	if err == nil || !strings.Contains(err.Error(), "can't evaluate field Age") || stdout.Len() != 0 {
		t.Errorf("found %q, %v", stdout.String(), err)
	}
}

func TestList(t *testing.T) {
	var stdout bytes.Buffer
	const expected = "formal/letter   Dear world, welcome.\ngerman          Grüß dich, world!\nplain           Hello, world!\n"
	if err := list(open(t, ""), &stdout); err != nil || stdout.String() != expected {
		t.Errorf("found %q, %v", stdout.String(), err)
	}
}

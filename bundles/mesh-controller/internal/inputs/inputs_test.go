package inputs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	certificate = "-----BEGIN CERTIFICATE-----\nZGVtbw==\n-----END CERTIFICATE-----\n"
	secret      = "hunter2-never-to-be-told"
)

// given is an environment in which every input is well.
func given(t *testing.T) map[string]string {
	t.Helper()
	folder := t.TempDir()
	env := map[string]string{}
	for _, file := range files {
		content := secret
		if file.name == "MESH_BROKER_CERTIFICATE" {
			content = certificate
		}
		env[file.name] = filepath.Join(folder, file.name)
		write(t, env[file.name], content)
	}
	for i, name := range ports {
		env[name] = fmt.Sprint(5000 + i)
	}
	return env
}

func check(env map[string]string) Report {
	return Check(func(name string) string { return env[name] })
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheInputsAreThoseOfTheManifest(t *testing.T) {
	content, err := os.ReadFile("../../manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Resources []struct{ Env map[string]string }
	}
	if err := json.Unmarshal(content, &manifest); err != nil {
		t.Fatal(err)
	}
	declared := []string{}
	for _, resource := range manifest.Resources {
		declared = append(declared, slices.Collect(maps.Keys(resource.Env))...)
	}
	read := slices.Collect(maps.Keys(given(t)))
	slices.Sort(declared)
	slices.Sort(read)
	if !slices.Equal(declared, read) {
		t.Errorf("the manifest gives %q, the program reads %q", declared, read)
	}
}

func TestEveryInputIsWell(t *testing.T) {
	env := given(t)
	report := check(env)
	if problems := report.Problems(); len(problems) != 0 {
		t.Errorf("found %v", problems)
	}
	for _, file := range report.Files {
		if !file.Present || file.Path != env[file.Name] {
			t.Errorf("found %+v", file)
		}
	}
	for i, port := range report.Ports {
		if port.Port != 5000+i {
			t.Errorf("found %+v", port)
		}
	}
}

func TestProblemsOfAFile(t *testing.T) {
	const secretName, certificateName = "MESH_BUS_NATS_FILE", "MESH_BROKER_CERTIFICATE"
	tests := []struct {
		title, name string
		make        func(path string) error
		present     bool
		problem     string
	}{
		{"missing", secretName, func(string) error { return nil }, false, "no such file or directory"},
		{"below a file", secretName, func(string) error { return nil }, false, "not a directory"},
		{"a folder", secretName, func(p string) error { return os.Mkdir(p, 0o755) }, true, "is not a regular file"},
		{"a pipe", secretName, func(p string) error { return syscall.Mkfifo(p, 0o600) }, true, "is not a regular file"},
		{"a link to nothing", secretName, func(p string) error { return os.Symlink("nothing", p) }, false, "no such file or directory"},
		{"empty", secretName, content(""), true, "is empty"},
		{"blank", secretName, content(" \n\t"), true, "is empty"},
		{"binary", secretName, content(secret + "\x00"), true, "is not text in UTF-8"},
		{"not UTF-8", secretName, content(secret + "\xff"), true, "is not text in UTF-8"},
		{"large", secretName, content(strings.Repeat("x", MaxFileBytes+1)), true, "is larger than 1048576 bytes"},
		{"no certificate", certificateName, content(secret), true, "holds no PEM certificate"},
		{"a key", certificateName, content(strings.ReplaceAll(certificate, "CERTIFICATE", "PRIVATE KEY")), true, "holds no PEM certificate"},
		{"cut", certificateName, content(certificate[:40]), true, "holds no PEM certificate"},
	}
	for _, test := range tests {
		t.Run(test.title, func(t *testing.T) {
			env := given(t)
			path := filepath.Join(t.TempDir(), "input")
			if test.title == "below a file" {
				path = filepath.Join(env[certificateName], "input")
			}
			if err := test.make(path); err != nil {
				t.Fatal(err)
			}
			env[test.name] = path
			report := check(env)
			expected := []Problem{{test.name, "file " + path + ": " + test.problem}}
			if problems := report.Problems(); !slices.Equal(problems, expected) {
				t.Errorf("expected %v, found %v", expected, problems)
			}
			for _, file := range report.Files {
				if file.Name == test.name && file.Present != test.present {
					t.Errorf("present: expected %v, found %v", test.present, file.Present)
				}
			}
			if strings.Contains(fmt.Sprintf("%+v", report), secret) {
				t.Errorf("the report holds a secret: %+v", report)
			}
		})
	}
}

func content(text string) func(string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
}

func TestACertificateMayFollowOtherPEM(t *testing.T) {
	env := given(t)
	key := strings.ReplaceAll(certificate, "CERTIFICATE", "PRIVATE KEY")
	write(t, env["MESH_BROKER_CERTIFICATE"], "a comment\n"+key+certificate)
	if problems := check(env).Problems(); len(problems) != 0 {
		t.Errorf("found %v", problems)
	}
}

func TestProblemsOfAPort(t *testing.T) {
	for _, text := range []string{"0", "65536", "-1", "+1", "01", "1 ", "0x50", "http", "${seat:mesh-store:5432}"} {
		env := given(t)
		env["MESH_STORE_INVENTORY_PORT"] = text
		expected := []Problem{{"MESH_STORE_INVENTORY_PORT", fmt.Sprintf("is %q; expected a port from 1 to 65535", text)}}
		if problems := check(env).Problems(); !slices.Equal(problems, expected) {
			t.Errorf("%q: expected %v, found %v", text, expected, problems)
		}
	}
	for _, text := range []string{"1", "65535"} {
		env := given(t)
		env["MESH_STORE_INVENTORY_PORT"] = text
		if problems := check(env).Problems(); len(problems) != 0 {
			t.Errorf("%q: found %v", text, problems)
		}
	}
}

func TestAnEmptyEnvironmentMissesEverything(t *testing.T) {
	problems := check(nil).Problems()
	if len(problems) != len(files)+len(ports) {
		t.Errorf("found %d problems: %v", len(problems), problems)
	}
	for _, problem := range problems {
		if !strings.HasPrefix(problem.Problem, "is not set") {
			t.Errorf("found %v", problem)
		}
	}
}

func TestAPipeDoesNotHoldTheCheckUp(t *testing.T) {
	env := given(t)
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	env["MESH_BUS_NATS_FILE"] = path
	done := make(chan Report, 1)
	go func() { done <- check(env) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("the check waits for somebody to write to the pipe")
	}
}

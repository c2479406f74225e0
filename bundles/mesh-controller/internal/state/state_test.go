package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 123, time.FixedZone("", 3600))

func TestFolderIsThatOfTheInventory(t *testing.T) {
	env := map[string]string{"MESH_STORE_INVENTORY_FILE": "/srv/mesh/inventory"}
	if folder := Folder(func(name string) string { return env[name] }); folder != "/srv/mesh" {
		t.Errorf("found %q", folder)
	}
	if folder := Folder(func(string) string { return "" }); folder != "" {
		t.Errorf("found %q", folder)
	}
}

func TestPrepareCreatesOnceAndKeeps(t *testing.T) {
	folder := t.TempDir()
	if _, err := Read(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("expected no state, found %v", err)
	}
	expectPrepared(t, folder, true)
	first := read(t, folder)
	const expected = `{
  "schema": 1,
  "readable_from": 1,
  "created_at": "2026-12-01T11:00:00Z",
  "created_by": "mesh-controller 1"
}
`
	if first != expected {
		t.Errorf("found %s", first)
	}
	expectPrepared(t, folder, false)
	if second := read(t, folder); second != first {
		t.Errorf("it was changed to %s", second)
	}
	if info, err := os.Stat(filepath.Join(folder, FileName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("found %v, %v", info.Mode(), err)
	}
}

func TestANewerFileThatThisReleaseCanReadIsKept(t *testing.T) {
	folder := t.TempDir()
	newer := `{"schema": 7, "readable_from": 1, "nodes": ["a"], "created_at": "2030-01-01T00:00:00Z"}`
	write(t, folder, newer)
	expectPrepared(t, folder, false)
	if found := read(t, folder); found != newer {
		t.Errorf("it was changed to %s", found)
	}
	if found, err := Read(folder); err != nil || found.Schema != 7 {
		t.Errorf("found %+v, %v", found, err)
	}
}

func TestAFileThatThisReleaseCannotReadIsRefusedAndKept(t *testing.T) {
	tests := []struct{ content, problem string }{
		{`{"schema": 3, "readable_from": 2}`, "needs a release that reads schema 2; this one reads up to 1"},
		{`{"schema": 1}`, "expected schema and readable_from of 1 or more, found 1 and 0"},
		{`{}`, "expected schema and readable_from of 1 or more, found 0 and 0"},
		{`{"schema": 1,`, "is not a JSON document of this program"},
		{``, "is not a JSON document of this program"},
		{`[]`, "is not a JSON document of this program"},
	}
	for _, test := range tests {
		folder := t.TempDir()
		write(t, folder, test.content)
		created, err := Prepare(folder, "", noon)
		if created || err == nil || !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: expected %q, found %v, %v", test.content, test.problem, created, err)
		}
		if found := read(t, folder); found != test.content {
			t.Errorf("%s: it was changed to %s", test.content, found)
		}
	}
}

func TestAFolderThatCannotBePrepared(t *testing.T) {
	parent := t.TempDir()
	write(t, parent, "a file")
	for _, folder := range []string{filepath.Join(parent, "missing"), filepath.Join(parent, FileName)} {
		if _, err := Prepare(folder, "", noon); err == nil {
			t.Errorf("%s: no error", folder)
		}
	}
	link := t.TempDir()
	if err := os.Symlink("nothing", filepath.Join(link, FileName)); err != nil {
		t.Fatal(err)
	}
	if created, err := Prepare(link, "", noon); created || err == nil {
		t.Errorf("a link to nothing: found %v, %v", created, err)
	}
}

func TestAFolderWithoutWritePermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write anywhere")
	}
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := Check(folder); err == nil || !strings.Contains(err.Error(), "can't be written to: permission denied") {
		t.Errorf("found %v", err)
	}
}

func expectPrepared(t *testing.T, folder string, expected bool) {
	t.Helper()
	created, err := Prepare(folder, "mesh-controller 1", noon)
	if err != nil || created != expected {
		t.Errorf("expected created %v, found %v, %v", expected, created, err)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 1 {
		t.Errorf("something else was left: %v", entries)
	}
}

func write(t *testing.T, folder, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, FileName), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, folder string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, FileName))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestReplacePutsNewContentInPlaceOfOld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"old", "new"} {
		if err := Replace(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		expectFile(t, path, content, 0o644)
	}
	expectNames(t, filepath.Dir(path), "file")
}

func TestCreateNeverReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Create(path, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, []byte("second"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("expected that the file exists, found %v", err)
	}
	expectFile(t, path, "first", 0o600)
	expectNames(t, filepath.Dir(path), "file")
}

func TestOfManyCreatesAtOnceOneWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var won atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			switch err := Create(path, []byte("content"), 0o600); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d won", won.Load())
	}
	expectNames(t, filepath.Dir(path), "file")
}

func TestAFailureLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "taken")
	if err := os.MkdirAll(filepath.Join(path, "by-a-folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("content"), 0o644); err == nil {
		t.Error("a folder was replaced")
	}
	if err := Replace(filepath.Join(folder, "missing", "file"), nil, 0o644); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("expected a missing folder, found %v", err)
	}
	expectNames(t, folder, "taken")
}

func expectFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	found, err := os.ReadFile(path)
	if err != nil || string(found) != content {
		t.Errorf("expected %q, found %q, %v", content, found, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != mode {
		t.Errorf("expected mode %v, found %v, %v", mode, info.Mode(), err)
	}
}

func expectNames(t *testing.T, folder string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	if len(found) != len(names) || found[0] != names[0] {
		t.Errorf("expected %q in the folder, found %q", names, found)
	}
}

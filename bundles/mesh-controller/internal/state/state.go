// Package state keeps the controller's own file in its state folder.
//
// A release may run beside an older one, or be replaced by it, so the file says which releases can read it: a release
// whose schema is S reads a file whose readable_from is S or lower, and ignores the keys that it doesn't know.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"mesh.example/controller/internal/atomicfile"
)

const (
	// FileName is the state file's name in the state folder.
	FileName = "controller.json"
	// Schema is what this release writes, and the newest that it reads.
	Schema = 1
	// readableFrom is the oldest schema whose releases can read what this one writes.
	readableFrom = 1
)

// access(2): may the process write to, and search, a folder.
const writeAndSearch = 0x2 | 0x1

// State is the content of the state file.
type State struct {
	Schema       int       `json:"schema"`
	ReadableFrom int       `json:"readable_from"`
	CreatedAt    time.Time `json:"created_at"`
	CreatedBy    string    `json:"created_by"`
}

// Folder is the state folder: the one that holds the inventory's secret, as the manifest declares it. Empty where the
// environment doesn't name it.
func Folder(getenv func(string) string) string {
	path := getenv("MESH_STORE_INVENTORY_FILE")
	if path == "" {
		return ""
	}
	return filepath.Dir(path)
}

// Check says why Prepare would fail, and changes nothing.
func Check(folder string) error {
	info, err := os.Stat(folder)
	switch {
	case err != nil:
		return fmt.Errorf("state folder: %w", err)
	case !info.IsDir():
		return fmt.Errorf("state folder %s: is not a folder", folder)
	}
	if err := syscall.Access(folder, writeAndSearch); err != nil {
		return fmt.Errorf("state folder %s: can't be written to: %w", folder, err)
	}
	_, err = Read(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Prepare creates the state file, and says whether it did. One that is there and that this release can read stays as it
// is, byte for byte.
func Prepare(folder, createdBy string, now time.Time) (created bool, err error) {
	if err := Check(folder); err != nil {
		return false, err
	}
	if _, err := Read(folder); err == nil {
		return false, nil
	}
	content, err := json.MarshalIndent(State{
		Schema: Schema, ReadableFrom: readableFrom, CreatedAt: now.UTC().Truncate(time.Second), CreatedBy: createdBy,
	}, "", "  ")
	if err != nil {
		return false, err
	}
	err = atomicfile.Create(filepath.Join(folder, FileName), append(content, '\n'), 0o600)
	if errors.Is(err, fs.ErrExist) { // another one was faster
		_, err = Read(folder)
		return false, err
	}
	return err == nil, err
}

// Read returns the state. Where Prepare has not run yet, the error wraps fs.ErrNotExist.
func Read(folder string) (State, error) {
	path := filepath.Join(folder, FileName)
	content, err := os.ReadFile(path)
	if err != nil {
		return State{}, fmt.Errorf("state file: %w", err)
	}
	var state State
	if err := json.Unmarshal(content, &state); err != nil {
		return State{}, fmt.Errorf("state file %s: is not a JSON document of this program: %w", path, err)
	}
	if state.Schema < 1 || state.ReadableFrom < 1 {
		return State{}, fmt.Errorf("state file %s: expected schema and readable_from of 1 or more, found %d and %d",
			path, state.Schema, state.ReadableFrom)
	}
	if state.ReadableFrom > Schema {
		return State{}, fmt.Errorf("state file %s: needs a release that reads schema %d; this one reads up to %d",
			path, state.ReadableFrom, Schema)
	}
	return state, nil
}

// Package atomicfile writes small files that are either whole or not there.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace writes a file, in place of one that may be there. Whoever opens path meanwhile reads the old content or the
// new one. On failure the old file is as it was.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, os.Rename)
}

// Create writes a file that must not be there; where it is, the error wraps fs.ErrExist and it stays as it was, even if
// it appeared at the same moment. On failure nothing is left.
func Create(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, func(temp, path string) error {
		if err := os.Link(temp, path); err != nil { // unlike a rename, a link never replaces
			return err
		}
		return os.Remove(temp)
	})
}

func write(path string, content []byte, mode fs.FileMode, place func(temp, path string) error) error {
	folder := filepath.Dir(path)
	file, err := os.CreateTemp(folder, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	temp := file.Name()
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err == nil {
		err = place(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // the first error is the one to tell
		return err
	}
	return syncFolder(folder)
}

// syncFolder makes the file's name as durable as its content.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

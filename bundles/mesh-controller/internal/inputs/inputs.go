// Package inputs reads what the controller's environment names: secret files, a certificate, and ports.
//
// No content of a file ever leaves this package: reports tell names, paths, and what is wrong.
package inputs

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

// MaxFileBytes is the size above which a file is refused, so that a wrong path can't take all memory.
const MaxFileBytes = 1 << 20

// files are the environment variables that name a file, with the check of its content.
var files = []struct {
	name  string
	check func(content []byte) error
}{
	{"MESH_BROKER_CERTIFICATE", checkCertificate},
	{"MESH_STORE_INVENTORY_FILE", checkSecret},
	{"MESH_STORE_IDENTITY_FILE", checkSecret},
	{"MESH_STORE_LICENCES_FILE", checkSecret},
	{"MESH_BROKER_MANAGEMENT_FILE", checkSecret},
	{"MESH_BROKER_ADDRESS_FILE", checkSecret},
	{"MESH_BUS_NATS_FILE", checkSecret},
}

// ports are the environment variables that hold a port of this host.
var ports = []string{
	"MESH_STORE_INVENTORY_PORT",
	"MESH_STORE_IDENTITY_PORT",
	"MESH_STORE_LICENCES_PORT",
	"MESH_BROKER_MANAGEMENT_PORT",
	"MESH_BROKER_ADDRESS_PORT",
}

// File is one file that the environment names. Problem is empty where the file is well.
type File struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Present bool   `json:"present"`
	Problem string `json:"problem,omitempty"`
}

// Port is one port that the environment holds. Problem is empty where it is well, Port 0 where it isn't.
type Port struct {
	Name    string `json:"name"`
	Port    int    `json:"port"`
	Problem string `json:"problem,omitempty"`
}

// Problem says what is wrong with the thing of a name.
type Problem struct {
	Name    string `json:"name"`
	Problem string `json:"problem"`
}

func (p Problem) String() string { return p.Name + ": " + p.Problem }

// Report is the state of every input at one moment, in a fixed order.
type Report struct {
	Files []File `json:"files"`
	Ports []Port `json:"ports"`
}

// Check reads every input afresh.
func Check(getenv func(string) string) Report {
	report := Report{Files: make([]File, 0, len(files)), Ports: make([]Port, 0, len(ports))}
	for _, file := range files {
		report.Files = append(report.Files, checkFile(file.name, getenv(file.name), file.check))
	}
	for _, name := range ports {
		report.Ports = append(report.Ports, checkPort(name, getenv(name)))
	}
	return report
}

// Problems lists all that is wrong; it is empty where every input is well.
func (r Report) Problems() []Problem {
	problems := []Problem{}
	for _, file := range r.Files {
		if file.Problem != "" {
			problems = append(problems, Problem{file.Name, file.Problem})
		}
	}
	for _, port := range r.Ports {
		if port.Problem != "" {
			problems = append(problems, Problem{port.Name, port.Problem})
		}
	}
	return problems
}

func checkFile(name, path string, check func([]byte) error) File {
	file := File{Name: name, Path: path}
	if path == "" {
		file.Problem = "is not set; expected the path of a file"
		return file
	}
	_, err := os.Stat(path)
	file.Present = err == nil
	content, err := read(path)
	if err == nil {
		err = check(content)
	}
	if err != nil {
		file.Problem = fmt.Sprintf("file %s: %v", path, err)
	}
	return file
}

// read returns a regular file's content. Opening doesn't wait, as it would for a pipe that nobody writes to.
func read(path string) (content []byte, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer func() { err = errors.Join(err, withoutPath(file.Close())) }()
	info, err := file.Stat()
	if err != nil {
		return nil, withoutPath(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	content, err = io.ReadAll(io.LimitReader(file, MaxFileBytes+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	if len(content) > MaxFileBytes {
		return nil, fmt.Errorf("is larger than %d bytes", MaxFileBytes)
	}
	return content, nil
}

// withoutPath is the error without the path, which the report names already.
func withoutPath(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// checkSecret accepts any text: what is in it is for the service that it opens to judge.
func checkSecret(content []byte) error {
	switch {
	case len(bytes.TrimSpace(content)) == 0:
		return errors.New("is empty")
	case !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0:
		return errors.New("is not text in UTF-8")
	}
	return nil
}

// checkCertificate accepts PEM with a certificate in it (RFC 7468, section 5). Whether it is the right one, and still
// valid, shows when the broker is called.
func checkCertificate(content []byte) error {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" && len(block.Bytes) > 0 {
			return nil
		}
	}
	return errors.New("holds no PEM certificate")
}

func checkPort(name, text string) Port {
	if text == "" {
		return Port{Name: name, Problem: "is not set; expected a port"}
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 || strings.HasPrefix(text, "0") {
		return Port{Name: name, Problem: fmt.Sprintf("is %q; expected a port from 1 to 65535", text)}
	}
	return Port{Name: name, Port: int(number)}
}

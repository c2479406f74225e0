package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"mesh.example/controller/internal/listen"
)

const (
	askTimeout     = 5 * time.Second
	maxAnswerBytes = 1 << 20
)

// status asks the controller that is running and prints what it says.
func status(p program, args []string) error {
	flags := flag.NewFlagSet("status", flag.ContinueOnError)
	address := flags.String("address", "", "")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *address != "" {
		if _, _, err := listen.Split(*address); err != nil {
			return usageError{fmt.Errorf("status: --%w", err)}
		}
	} else {
		found, err := runningAddress(p.getenv)
		if err != nil {
			return err
		}
		*address = found
	}
	answer, err := ask(*address)
	if err != nil {
		return fmt.Errorf("no controller answers at %s: %w", *address, err)
	}
	_, err = p.stdout.Write(answer)
	return err
}

// runningAddress is what serve has written to the address file, else what it was told to listen on.
func runningAddress(getenv func(string) string) (string, error) {
	if path := getenv("MESH_ADDRESS_FILE"); path != "" {
		content, err := os.ReadFile(path)
		switch {
		case err == nil:
			return strings.TrimSpace(string(content)), nil
		case !errors.Is(err, fs.ErrNotExist) || getenv("MESH_LISTEN") == "":
			return "", fmt.Errorf("no controller seems to run: MESH_ADDRESS_FILE: %w", err)
		}
	}
	if address := getenv("MESH_LISTEN"); address != "" {
		return address, nil
	}
	return defaultAddress, nil
}

// ask returns the status document, indented.
func ask(address string) ([]byte, error) {
	network, target, err := listen.Split(address)
	if err != nil {
		return nil, err
	}
	client := http.Client{
		Timeout: askTimeout,
		Transport: &http.Transport{ // without a proxy: the controller is on this host
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, target)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	response, err := client.Get("http://mesh-controller/status")
	if err != nil {
		return nil, errors.Unwrap(err) // without the URL, whose host is a placeholder
	}
	defer response.Body.Close() // read to its end, or given up
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("expected 200, found %s", response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, bytes.TrimSpace(content), "", "  "); err != nil {
		return nil, fmt.Errorf("expected JSON, found something else: %w", err)
	}
	indented.WriteByte('\n')
	return indented.Bytes(), nil
}

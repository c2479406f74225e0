package server

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"mesh.example/controller/internal/inputs"
)

func get(t *testing.T, method, path string, problems ...inputs.Problem) *http.Response {
	t.Helper()
	recorder := httptest.NewRecorder()
	status := func() Status {
		return Status{
			Module: "m", Version: "1", Ready: len(problems) == 0, Problems: problems,
			Report: inputs.Report{Files: []inputs.File{{Name: "F", Path: "/f", Present: true}}, Ports: []inputs.Port{{Name: "P", Port: 1}}},
		}
	}
	Handler(status).ServeHTTP(recorder, httptest.NewRequest(method, path, nil))
	return recorder.Result()
}

func body(t *testing.T, response *http.Response) string {
	t.Helper()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestHealthy(t *testing.T) {
	response := get(t, "GET", "/healthz")
	if found := body(t, response); response.StatusCode != 200 || found != "ok\n" {
		t.Errorf("found %d %q", response.StatusCode, found)
	}
}

func TestUnhealthySaysWhatIsMissing(t *testing.T) {
	response := get(t, "GET", "/healthz", inputs.Problem{Name: "F", Problem: "is empty"})
	const expected = `{
  "status": "not ready",
  "problems": [
    {
      "name": "F",
      "problem": "is empty"
    }
  ]
}
`
	if found := body(t, response); response.StatusCode != 503 || found != expected {
		t.Errorf("found %d %s", response.StatusCode, found)
	}
	if found := response.Header.Get("Content-Type"); found != "application/json" {
		t.Errorf("found %s", found)
	}
}

func TestStatusIsJSON(t *testing.T) {
	response := get(t, "GET", "/status", inputs.Problem{Name: "F", Problem: "is empty"})
	var found map[string]any
	if err := json.Unmarshal([]byte(body(t, response)), &found); err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != 200 || found["ready"] != false || found["version"] != "1" {
		t.Errorf("found %d %v", response.StatusCode, found)
	}
	for _, key := range []string{"module", "since", "state_schema", "problems", "files", "ports"} {
		if _, ok := found[key]; !ok {
			t.Errorf("%s is missing in %v", key, found)
		}
	}
}

func TestOtherRequestsAreRefused(t *testing.T) {
	for _, test := range []struct {
		method, path string
		code         int
	}{
		{"POST", "/healthz", 405}, {"DELETE", "/status", 405}, {"GET", "/", 404}, {"GET", "/status/x", 404}, {"HEAD", "/healthz", 200},
	} {
		if found := get(t, test.method, test.path).StatusCode; found != test.code {
			t.Errorf("%s %s: expected %d, found %d", test.method, test.path, test.code, found)
		}
	}
}

// running starts Run on a real socket, with a handler that says that it was reached and then waits to be let go.
type running struct {
	address  string
	reached  chan struct{}
	letGo    chan struct{}
	stop     context.CancelFunc
	stopping chan struct{}
	done     chan error
}

func start(t *testing.T, drain time.Duration) running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := running{
		listener.Addr().String(), make(chan struct{}), make(chan struct{}), cancel, make(chan struct{}), make(chan error, 1),
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r.reached <- struct{}{}
		<-r.letGo
		_, _ = io.WriteString(w, "whole")
	})
	go func() {
		log := slog.New(slog.DiscardHandler)
		r.done <- Run(ctx, handler, []net.Listener{listener}, drain, func() { close(r.stopping) }, log)
	}()
	return r
}

func TestAStopLetsOpenRequestsFinish(t *testing.T) {
	r := start(t, time.Minute)
	answer := make(chan string, 1)
	go func() {
		response, err := http.Get("http://" + r.address)
		if err != nil {
			answer <- err.Error()
			return
		}
		content, _ := io.ReadAll(response.Body)
		answer <- string(content)
	}()
	<-r.reached
	r.stop()
	<-r.stopping
	select {
	case err := <-r.done:
		t.Fatalf("it ended with a request open: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(r.letGo)
	if found := <-answer; found != "whole" {
		t.Errorf("found %q", found)
	}
	if err := <-r.done; err != nil {
		t.Error(err)
	}
	if connection, err := net.Dial("tcp", r.address); err == nil {
		connection.Close()
		t.Error("it still listens")
	}
}

func TestADrainIsBounded(t *testing.T) {
	r := start(t, 50*time.Millisecond)
	answer := make(chan error, 1)
	go func() {
		_, err := http.Get("http://" + r.address)
		answer <- err
	}()
	<-r.reached
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a request that never ends")
	}
	if err := <-answer; err == nil {
		t.Error("a cut request succeeded")
	}
	close(r.letGo)
}

func TestAListenerThatFailsIsAnError(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	err = Run(t.Context(), http.NotFoundHandler(), []net.Listener{listener}, time.Second, func() {}, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Error("no error")
	}
}

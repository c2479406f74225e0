// Package server answers HTTP requests about the controller.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"mesh.example/controller/internal/inputs"
)

// Status is the answer to /status. It never holds a secret.
type Status struct {
	Module      string           `json:"module"`
	Version     string           `json:"version"`
	Since       time.Time        `json:"since"`
	Ready       bool             `json:"ready"`
	StateSchema int              `json:"state_schema"`
	Problems    []inputs.Problem `json:"problems"`
	inputs.Report
}

type health struct {
	Status   string           `json:"status"`
	Problems []inputs.Problem `json:"problems"`
}

// Handler answers /healthz and /status. The status is asked for afresh at each request, so that a file that
// appears later makes the controller ready without a restart.
func Handler(status func() Status) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		problems := status().Problems
		if len(problems) > 0 {
			writeJSON(w, http.StatusServiceUnavailable, health{"not ready", problems})
			return
		}
		write(w, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, status())
	})
	return mux
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, code, "application/json", append(content, '\n'))
}

func write(w http.ResponseWriter, code int, contentType string, content []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(content) // fails when the client has gone: there is nobody left to tell
}

// Run serves on every listener until the context ends, calls stopping, and lets open requests finish for at most drain;
// connections that are still open then are cut. It returns nil after a stop that was asked for. All listeners are
// closed when it returns.
func Run(
	ctx context.Context,
	handler http.Handler,
	listeners []net.Listener,
	drain time.Duration,
	stopping func(),
	log *slog.Logger,
) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, len(listeners))
	for _, listener := range listeners {
		go func() { ended <- server.Serve(listener) }()
	}
	serving := len(listeners)
	var failure error
	select {
	case <-ctx.Done():
	case err := <-ended:
		serving--
		failure = fmt.Errorf("serve: %w", err)
	}
	stopping()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := server.Shutdown(limit); errors.Is(err, context.DeadlineExceeded) {
		log.Warn("cut the connections that were still open", "drain", drain)
		_ = server.Close()
	}
	for range serving {
		<-ended
	}
	return failure
}

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"mesh.example/hello-files/internal/greet"
)

const (
	defaultAddress = "127.0.0.1:8430"
	drain          = 5 * time.Second
)

// serve answers until SIGTERM or SIGINT, then lets open requests finish for a moment.
func serve(greeter *greet.Greeter, address string) error {
	if address == "" {
		address = defaultAddress
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	log.Info("listening", "address", listener.Addr(), "version", version)
	server := http.Server{
		Handler:      handler(greeter),
		ReadTimeout:  5 * time.Second,
		WriteTimeout: 5 * time.Second,
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stop() // a second signal ends the process at once
	limit, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	if err := server.Shutdown(limit); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return server.Close()
}

// handler greets on / and says on /healthz whether it can.
func handler(greeter *greet.Greeter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		greeting, err := greeter.Greet(r.FormValue("style"), r.FormValue("name"))
		answer(w, greeting, http.StatusBadRequest, err)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, "ok\n", http.StatusServiceUnavailable, greeter.Check())
	})
	return mux
}

func answer(w http.ResponseWriter, text string, failed int, err error) {
	if err != nil {
		http.Error(w, err.Error(), failed)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff") // a name may look like HTML
	_, _ = io.WriteString(w, text)                      // fails when the client has gone: there is nobody left to tell
}

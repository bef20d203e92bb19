// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// retryAfter is how long an address that could not be listened on is left
	// alone, as in kube-proxy.
	retryAfter = 5 * time.Second

	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	stopTimeout  = time.Second

	// maxScrapes is how many are answered at the same time.
	maxScrapes = 4
)

// Run serves /metrics until ctx is done, and returns its cause. An address that
// cannot be listened on is tried again every five seconds, or is an error with
// HardFail. Without an address it only waits.
func (m *Metrics) Run(ctx context.Context) error {
	if m.o.Address == "" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for {
		listener, err := m.o.Listen(ctx, "tcp", m.o.Address)
		if err == nil {
			err = m.serve(ctx, listener)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = fmt.Errorf("serve metrics on %s: %w", m.o.Address, err)
		if m.o.HardFail {
			return err
		}
		m.o.Logger.Error("cannot serve metrics, trying again", "err", err)
		timer := m.o.Clock.NewTimer(retryAfter)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// serve answers until ctx is done or the listener fails, and lets scrapes end.
func (m *Metrics) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: m.Handler(), ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(m.o.Logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(stopCtx); err != nil {
		m.o.Logger.Debug("a scrape was cut off", "err", errors.Join(err, server.Close()))
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler answers GET /metrics in the format that is asked for: text, OpenMetrics or
// protobuf, the one that has native histograms.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.o.Registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(m.o.Logger.Handler(), slog.LevelError),
		// What can be collected is worth more than nothing.
		ErrorHandling: promhttp.ContinueOnError, Registry: m.o.Registry,
		MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true,
	}))
	return mux
}

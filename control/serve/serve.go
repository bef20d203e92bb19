// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/veridict/veridict/dataplane/runner"
)

const (
	// retryAfter is how long an address that could not be listened on is left
	// alone, as in kube-proxy.
	retryAfter = 5 * time.Second

	readTimeout = 5 * time.Second
	// writeTimeout is longer than the 30 seconds that a CPU profile takes.
	writeTimeout = 45 * time.Second
	idleTimeout  = 2 * time.Minute
	// stopTimeout leaves a process that is told to end within a second the time to.
	stopTimeout = 500 * time.Millisecond
)

// Options say what is served where.
type Options struct {
	// Name is what is served, for errors: "metrics".
	Name string
	// Address is host:port. Empty: nowhere.
	Address string
	// HardFail has Run end if it cannot listen on the address; otherwise it tries
	// again.
	HardFail bool
	Handler  http.Handler
	Logger   *slog.Logger
	// Listen is that of a net.ListenConfig if nil.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Clock is the system's clock if nil.
	Clock runner.Clock
}

// Run serves until ctx is done, and returns its cause. An address that cannot be
// listened on is tried again every five seconds, or is an error with HardFail.
// Without an address it only waits.
func Run(ctx context.Context, o Options) error {
	if o.Listen == nil {
		o.Listen = new(net.ListenConfig).Listen
	}
	if o.Clock == nil {
		o.Clock = runner.RealClock{}
	}
	if o.Address == "" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for {
		listener, err := o.Listen(ctx, "tcp", o.Address)
		if err == nil {
			err = o.serve(ctx, listener)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = fmt.Errorf("serve %s on %s: %w", o.Name, o.Address, err)
		if o.HardFail {
			return err
		}
		o.Logger.Error("cannot serve, trying again", "err", err)
		timer := o.Clock.NewTimer(retryAfter)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// serve answers until ctx is done or the listener fails, and lets requests end.
func (o *Options) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: o.Handler, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		o.Logger.Debug("a request was cut off", "err", errors.Join(err, server.Close()))
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

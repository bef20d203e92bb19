// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/veridict/veridict/bpf/sockets"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/conntrack"
	"github.com/veridict/veridict/dataplane/host"
	"github.com/veridict/veridict/dataplane/localhost"
	"github.com/veridict/veridict/dataplane/nftables"
)

// This file is the only one that knows which dataplane there is.

// kernel is the dataplane, which this process alone may program.
type kernel struct {
	dataplane.Syncer
	syncer  *nftables.Syncer
	proxies *localhost.Syncer
	// programs are nil where the proxy has to do.
	programs *sockets.Programs
	lock     io.Closer
}

func openKernel(ctx context.Context, cfg config.Config, logger *slog.Logger) (*kernel, error) {
	lock, err := nftables.Lock()
	if err != nil {
		return nil, err
	}
	syncer, err := nftables.New(ctx, kernelOptions(cfg, logger))
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	flows := conntrack.New(syncer, conntrack.Options{Logger: logger})
	k := &kernel{syncer: syncer, programs: openSockets(cfg, logger), lock: lock}
	options := localhost.Options{Logger: logger}
	if k.programs != nil {
		options.Redirector = k.programs
	}
	k.proxies = localhost.New(flows, options)
	k.Syncer = k.proxies
	return k, nil
}

// openSockets returns nil where NodePorts on loopback addresses are not served, or the
// kernel does not take the programs: then the proxy serves them.
func openSockets(cfg config.Config, logger *slog.Logger) *sockets.Programs {
	path, err := socketPins(cfg.Observe.PinPath)
	if err != nil {
		logger.Warn("programs on sockets are not pinned", "err", err)
	}
	if cfg.Localhost != dataplane.LocalhostProxied {
		// A process with other settings may have left some.
		if err := sockets.Remove(path); err != nil {
			logger.Warn("NodePorts on loopback addresses are redirected as before", "err", err)
		}
		return nil
	}
	programs, err := sockets.Open(sockets.Options{PinPath: path, Logger: logger})
	if err != nil && path != "" {
		logger.Info("NodePorts on loopback addresses are redirected until this process ends, if at all", "err", err)
		programs, err = sockets.Open(sockets.Options{Logger: logger})
	}
	if err != nil {
		logger.Warn("NodePorts on loopback addresses are served by a proxy in user space, TCP only", "err", err)
		return nil
	}
	return programs
}

// socketPins returns where programs on sockets are pinned, beside the probes, or no
// path if nothing is.
func socketPins(given string) (string, error) {
	path, err := pinPath(given)
	if path == "" || err != nil {
		return "", err
	}
	return filepath.Join(path, "sockets"), nil
}

// close leaves what is programmed in place.
func (k *kernel) close() {
	// Only sockets and the lock are given back, and the process ends.
	_ = k.proxies.Close()
	if k.programs != nil {
		_ = k.programs.Close()
	}
	_ = k.syncer.Close()
	_ = k.lock.Close()
}

// kernelOptions needs no check of the layout: config.Load knows the same two.
func kernelOptions(cfg config.Config, logger *slog.Logger) nftables.Options {
	return nftables.Options{Layout: nftables.Layout(cfg.Layout), Logger: logger, MaxPins: cfg.MaxPins}
}

// watch sends when somebody else has changed our tables, until ctx is done.
// Changes while nobody receives are one.
func (k *kernel) watch(ctx context.Context, drift chan<- struct{}) error {
	return k.syncer.Watch(ctx, func() {
		select {
		case drift <- struct{}{}:
		default:
		}
	})
}

// keepPins removes pins of session affinity that are no longer allowed, until ctx is
// done.
func (k *kernel) keepPins(ctx context.Context) error { return k.syncer.KeepPins(ctx) }

// sweepPins does so once.
func (k *kernel) sweepPins(ctx context.Context) error {
	_, err := k.syncer.Sweep(ctx)
	return err
}

func renderState(w io.Writer, cfg config.Config, logger *slog.Logger, state dataplane.State) error {
	return nftables.Render(w, kernelOptions(cfg, logger), state)
}

// difference is one thing in the kernel that is not as it should be.
type difference = nftables.Difference

func verifyState(ctx context.Context, cfg config.Config, logger *slog.Logger, state dataplane.State) ([]difference, error) {
	return nftables.Verify(ctx, kernelOptions(cfg, logger), state)
}

// cleanUpKernel removes everything, pins at the given path or the usual one included.
func cleanUpKernel(ctx context.Context, pins string, logger *slog.Logger) error {
	lock, err := nftables.Lock()
	if err != nil {
		return err
	}
	// The process ends, and the lock with it.
	defer func() { _ = lock.Close() }()
	path, err := socketPins(pins)
	// The directory of the probes is around that of the sockets.
	return errors.Join(err, sockets.Remove(path), removeProbes(pins), nftables.Cleanup(ctx, logger))
}

// cleanUpKubeProxy needs no lock: it touches nothing of ours.
func cleanUpKubeProxy(ctx context.Context, logger *slog.Logger) error {
	return nftables.CleanupKubeProxy(ctx, logger)
}

// question and explanation are what explain is about.
type (
	question    = nftables.Question
	explanation = nftables.Explanation
)

func explainKernel(ctx context.Context, q question) (*explanation, error) {
	return nftables.Explain(ctx, q, routes{})
}

// routes knows which addresses are the node's own.
type routes struct{}

// IsLocal is part of nftables.Locator.
func (routes) IsLocal(addr netip.Addr) (bool, error) {
	route, err := host.RouteTo(addr)
	return route.Local, err
}

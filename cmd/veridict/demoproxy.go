// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/veridict/veridict/compare/demo"
	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/dataplane"
)

// demoProxy is the proxy that "veridict run" runs, for the node of the demo.
type demoProxy struct {
	kernel *recordingSyncer
	agent  *agent
	// watch is part of demo.Proxy.
	watch string
	stop  context.CancelFunc
	ended chan error
}

// demoSocket is where commands such as veridict top find the demo's proxy. Its
// directory is the host's, so that they can be called in another terminal.
const demoSocket = "/run/veridict/demo.sock"

// startDemoProxy returns when the directory is programmed for the first time.
func startDemoProxy(ctx context.Context, logger *slog.Logger, flags map[string]string, dir string) (demo.Proxy, error) {
	cfg, err := demoConfig(flags)
	if err != nil {
		return nil, err
	}
	kernel, err := openKernel(ctx, cfg, logger)
	if err != nil {
		return nil, err
	}
	src := source.NewDir(source.Options{Dir: dir, NodeName: cfg.NodeName, Logger: logger})
	p := &demoProxy{
		kernel: &recordingSyncer{Syncer: kernel.Syncer, programmed: make(chan struct{})},
		ended:  make(chan error, 1),
	}
	kernel.Syncer = p.kernel
	if p.agent, err = newAgent(cfg, src, kernel, demoSocket, logger); err != nil {
		kernel.close()
		return nil, err
	}
	ctx, p.stop = context.WithCancel(ctx)
	go func() {
		err := p.agent.run(ctx)
		kernel.close()
		p.ended <- err
	}()
	select {
	case <-p.kernel.programmed:
		if answersCommands(ctx, demoSocket) {
			p.watch = fmt.Sprintf("%s top --socket %s", os.Args[0], demoSocket)
		}
		return p, nil
	case err := <-p.ended:
		p.stop()
		return nil, errors.Join(err, ctx.Err())
	}
}

// answersWithin is how long commands have to be answered after the first sync. The
// socket is made meanwhile, so it takes milliseconds.
const answersWithin = 2 * time.Second

// answersCommands waits until this process answers on the socket. It does not if
// another demo is running.
func answersCommands(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	client := api.NewClient(socket)
	defer client.Close()
	again := time.NewTicker(answersWithin / 100)
	defer again.Stop()
	for {
		if status, err := client.Status(ctx); err == nil {
			return status.Agent.PID == os.Getpid()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return false
		}
	}
}

// demoConfig returns the configuration that the flags of "veridict run" lead to.
func demoConfig(flags map[string]string) (config.Config, error) {
	set := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	parsed := config.AddFlags(set)
	for name, value := range flags {
		if err := set.Set(name, value); err != nil {
			return config.Config{}, fmt.Errorf("configure the demo's proxy: %w", err)
		}
	}
	cfg, _, err := parsed.Load(func() (string, error) { return flags["hostname-override"], nil })
	if err != nil {
		return config.Config{}, fmt.Errorf("configure the demo's proxy: %w", err)
	}
	// Nobody asks in the demo's namespace.
	cfg.Metrics.Address, cfg.Healthz = "", ""
	return cfg, nil
}

// Counts is part of demo.Proxy.
func (p *demoProxy) Counts(context.Context) (dataplane.Counts, error) { return p.kernel.counts() }

// Observed is part of demo.Proxy.
func (p *demoProxy) Observed() *observe.Snapshot { return p.agent.observer.Refresh() }

// Watch is part of demo.Proxy.
func (p *demoProxy) Watch() string { return p.watch }

// Close is part of demo.Proxy.
func (p *demoProxy) Close() error {
	p.stop()
	return <-p.ended
}

// recordingSyncer remembers what was last reported.
type recordingSyncer struct {
	dataplane.Syncer
	programmed chan struct{}

	mu    sync.Mutex
	last  dataplane.Counts
	err   error
	first sync.Once
}

// Reset is part of dataplane.Syncer.
func (s *recordingSyncer) Reset(ctx context.Context, state dataplane.State) (dataplane.Report, error) {
	return s.record(s.Syncer.Reset(ctx, state))
}

// Sync is part of dataplane.Syncer.
func (s *recordingSyncer) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	return s.record(s.Syncer.Sync(ctx, update))
}

func (s *recordingSyncer) record(report dataplane.Report, err error) (dataplane.Report, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.err = report.Programmed, err
	if err == nil {
		s.first.Do(func() { close(s.programmed) })
	}
	return report, err
}

func (s *recordingSyncer) counts() (dataplane.Counts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.err
}

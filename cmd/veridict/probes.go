// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/conntrack"
)

// This file is the only one that knows how the kernel is observed.

// defaultPinPath is where the probes of a machine are pinned.
const defaultPinPath = "/sys/fs/bpf/veridict"

// openProbes returns the probes, or none and the status that says why. It fails only
// where they are required.
func openProbes(cfg config.Observe, logger *slog.Logger) (*kernelProbes, observe.ProbeStatus, error) {
	if cfg.Off {
		// An earlier process may have left some.
		if err := removeProbes(cfg.PinPath); err != nil {
			logger.Warn("the probes of an earlier process go on counting", "err", err)
		}
		return nil, observe.ProbeStatus{Mode: observe.Off, Reason: "switched off by observe.mode"}, nil
	}
	path, err := pinPath(cfg.PinPath)
	if err == nil {
		var p *probes.Probes
		p, err = probes.Open(probes.Options{PinPath: path, MaxSelections: uint32(cfg.MaxSelections), Logger: logger})
		if err == nil {
			return &kernelProbes{Probes: p}, observe.ProbeStatus{}, nil
		}
	}
	if cfg.Required {
		return nil, observe.ProbeStatus{}, fmt.Errorf("observe the kernel, as observe.mode requires: %w", err)
	}
	logger.Warn("the kernel is not observed; all else works", "reason", err)
	return nil, observe.ProbeStatus{Mode: observe.Off, Reason: err.Error()}, nil
}

// newObserver returns an Observer before the kernel, and what lets go of its probes.
// Pinned ones go on counting.
func newObserver(cfg config.Observe, kernel dataplane.Syncer, logger *slog.Logger) (*observe.Observer, func(), error) {
	probes, status, err := openProbes(cfg, logger)
	if err != nil {
		return nil, nil, err
	}
	options := observe.Options{Logger: logger, Interval: cfg.Interval, Status: status}
	stop := func() {}
	// A nil pointer in an interface would not be nil.
	if probes != nil {
		options.Probes = probes
		stop = func() { _ = probes.Close() }
	}
	return observe.New(kernel, options), stop, nil
}

// pinPath returns where to pin. Namespaces of one machine must not meet, and pins keep
// a namespace alive, so only that of the machine has a default.
func pinPath(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", fmt.Errorf("find the network namespace: %w", err)
	}
	machine, err := os.Readlink("/proc/1/ns/net")
	if errors.Is(err, os.ErrPermission) || err == nil && machine != own {
		return "", nil
	}
	return defaultPinPath, err
}

// kernelProbes are the probes as the control plane sees them.
type kernelProbes struct {
	*probes.Probes
	// clashes is what conntrack had counted at first.
	clashes *uint64
}

// Status is part of observe.Probes.
func (k *kernelProbes) Status() observe.ProbeStatus {
	status := k.Probes.Status()
	out := observe.ProbeStatus{
		Mode: observe.Mode(status.Mode), Reason: status.Reason, PinPath: status.PinPath, Capacity: status.Capacity,
	}
	for _, hook := range status.Hooks {
		out.Hooks = append(out.Hooks, observe.ProbeHook{
			Family: dataplane.Family(hook.Family), Hook: observe.Hook(hook.Hook.String()), Before: hook.Before, After: hook.After,
		})
	}
	return out
}

// SetFrontends is part of observe.Probes.
func (k *kernelProbes) SetFrontends(changed []observe.Frontend, removed []observe.FrontendID) error {
	add := make(map[probes.Frontend]probes.Affinity, len(changed))
	for _, f := range changed {
		add[frontend(f.FrontendID)] = probes.Affinity{Service: f.Service, Seconds: f.AffinitySeconds}
	}
	remove := make([]probes.Frontend, len(removed))
	for i, id := range removed {
		remove[i] = frontend(id)
	}
	return k.Probes.SetFrontends(add, remove)
}

func frontend(id observe.FrontendID) probes.Frontend {
	return probes.Frontend{
		Addr: id.VIP.Addr, Port: id.VIP.Port, Protocol: uint8(id.VIP.Protocol), Family: uint8(id.Family),
	}
}

// Read is part of observe.Probes.
func (k *kernelProbes) Read() (observe.Reading, error) {
	reading := observe.Reading{At: time.Now()}
	selections, err := k.Selections()
	if err != nil {
		return observe.Reading{}, err
	}
	reading.Selections = make([]observe.Selection, len(selections))
	for i := range selections {
		s := &selections[i]
		reading.Selections[i] = observe.Selection{
			SelectionKey: observe.SelectionKey{
				VIP:      dataplane.VIP{Addr: s.VIP.Addr(), Protocol: dataplane.Protocol(s.Protocol), Port: s.VIP.Port()},
				Endpoint: s.Endpoint,
			},
			Drawn: s.Drawn, Pinned: s.Pinned, First: s.First, Last: s.Last,
		}
	}
	latencies, err := k.Latencies()
	if err != nil {
		return observe.Reading{}, err
	}
	for _, l := range latencies {
		reading.Latencies = append(reading.Latencies, observe.Latency{
			Family: dataplane.Family(l.Family), Hook: observe.Hook(l.Hook.String()), Outcome: outcomes()[l.Outcome],
			Histogram: observe.Histogram(l.Histogram),
		})
	}
	reading.Losses, err = k.losses()
	return reading, err
}

func outcomes() map[probes.Outcome]observe.Outcome {
	return map[probes.Outcome]observe.Outcome{
		probes.Translated: observe.Translated, probes.Missed: observe.Missed, probes.Foreign: observe.Foreign,
	}
}

// losses are those of the probes and, since this process started, those of conntrack.
func (k *kernelProbes) losses() (observe.Losses, error) {
	l, err := k.Losses()
	if err != nil {
		return observe.Losses{}, err
	}
	var table conntrack.Kernel
	clashes, err := table.Clashes(context.Background())
	if err != nil {
		return observe.Losses{}, err
	}
	if k.clashes == nil {
		k.clashes = &clashes
	}
	return observe.Losses{
		Full: l.Full, Unmatched: l.Unmatched, Retransmitted: l.Retransmitted, Clashed: clashes - *k.clashes,
	}, nil
}

// Forget is part of observe.Probes.
func (k *kernelProbes) Forget(keys []observe.SelectionKey) error {
	list := make([]probes.Key, len(keys))
	for i, key := range keys {
		list[i] = probes.Key{
			VIP: netip.AddrPortFrom(key.VIP.Addr, key.VIP.Port), Protocol: uint8(key.VIP.Protocol), Endpoint: key.Endpoint,
		}
	}
	return k.Probes.Forget(list)
}

// prepareProbes makes the directory that probes are pinned in, and mounts the BPF file
// system where that is missing.
func prepareProbes(cfg config.Observe) error {
	path, err := pinPath(cfg.PinPath)
	if path == "" || err != nil {
		return err
	}
	return probes.Prepare(path)
}

// removeProbes removes what is pinned, the counters included.
func removeProbes(given string) error {
	path, err := pinPath(given)
	if path == "" || err != nil {
		return err
	}
	return probes.Remove(path)
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"

	"k8s.io/klog/v2"

	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/dataplane/host"
)

// nodeHost is the node that this process runs on.
type nodeHost struct{}

// Addresses is part of control.Host.
func (nodeHost) Addresses() ([]netip.Addr, error) { return host.Addresses() }

// Watch is part of control.Host.
func (nodeHost) Watch(ctx context.Context, handle func([]netip.Addr)) error {
	return host.Watch(ctx, handle)
}

// setConntrack sets the limits of connection tracking. Where that is not allowed,
// connections are served all the same.
func setConntrack(cfg config.Config, logger *slog.Logger) {
	err := host.Conntrack(cfg.Conntrack).Apply(host.OSFiles{}, runtime.NumCPU(), inInitialNetns(), logger)
	if err != nil {
		logger.Warn("connection tracking is not set up as configured", "err", err)
	}
}

// initialise does what a process without privileges cannot: the main container of a
// Pod finds it done. It ends with an error where that is not allowed either.
func initialise(cfg config.Config, logger *slog.Logger) error {
	err := host.Conntrack(cfg.Conntrack).Apply(host.OSFiles{}, runtime.NumCPU(), inInitialNetns(), logger)
	if err != nil {
		return fmt.Errorf("set up connection tracking: %w", err)
	}
	if cfg.Observe.Off {
		return nil
	}
	if err := prepareProbes(cfg.Observe); err != nil {
		if cfg.Observe.Required {
			return err
		}
		logger.Warn("the kernel will not be observed", "reason", err)
	}
	return nil
}

// setOOMScore has the kernel look for other processes first when memory is short. The
// kubelet has done so for a critical Pod.
func setOOMScore(cfg config.Config, logger *slog.Logger) {
	const file = "/proc/self/oom_score_adj"
	if text, err := os.ReadFile(file); err == nil {
		if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && now <= cfg.OOMScoreAdj {
			return
		}
	}
	err := os.WriteFile(file, []byte(strconv.Itoa(cfg.OOMScoreAdj)), 0)
	if err != nil {
		logger.Warn("the kernel may end veridict before others when memory is short; CAP_SYS_RESOURCE allows --oom-score-adj",
			"oomScoreAdj", cfg.OOMScoreAdj, "err", err)
	}
}

// bridgeKlog has client-go log to the same place. Its logger is the process's.
func bridgeKlog(logger *slog.Logger) { klog.SetSlogLogger(logger) }

// inInitialNetns says whether this process is in the machine's own network
// namespace, or in one of a container that stands for it: then the file of a
// setting of the whole machine can be written at least.
func inInitialNetns() bool {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false
	}
	initial, err := os.Readlink("/proc/1/ns/net")
	return err == nil && own == initial
}

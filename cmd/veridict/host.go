// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"runtime"

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

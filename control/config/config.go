// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"strings"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Config is what veridict needs to know, checked and complete.
type Config struct {
	// NodeName is the name of this node's object, in lower case.
	NodeName string
	Client   Client
	Layout   Layout
	// MinSyncPeriod is the least pause between two syncs; SyncPeriod is the
	// longest pause before a failed one is tried again.
	MinSyncPeriod, SyncPeriod time.Duration
	// LocalDetector is how pods of this node are recognised. With NodeCIDR
	// set, its CIDRs are those of the Node object.
	LocalDetector dataplane.LocalDetector
	NodeCIDR      bool
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// NodeIPs, at most one per family, stand for the Node object's address of that
	// family.
	NodeIPs   []netip.Addr
	NodePorts NodePorts
	// Localhost says what becomes of NodePorts on loopback addresses.
	Localhost dataplane.LocalhostNodePorts
	Conntrack Conntrack
	// MaxPins is how many clients of Services with session affinity are
	// remembered, for each protocol and IP family.
	MaxPins int
	Observe Observe
	Metrics Metrics
	// Healthz is the address that /healthz and its like are served on, empty for
	// none.
	Healthz string
	// OOMScoreAdj is how little the kernel should mind killing this process for its
	// memory, from -1000 (never) to 1000.
	OOMScoreAdj int
	Log         Log
}

// Layout names a kernel layout.
type Layout string

// The layouts, see ARCHITECTURE.md.
const (
	LayoutMarkFree Layout = "markfree"
	LayoutCTMark   Layout = "ctmark"
)

// Invalid is the error for flags and files with mistakes, all of them at once.
type Invalid struct {
	// Where is the path of the file, or "flags".
	Where string
	// Mistakes each name the field.
	Mistakes []string
}

// Error returns everything in one line.
func (e *Invalid) Error() string { return e.Where + ": " + strings.Join(e.Mistakes, "; ") }

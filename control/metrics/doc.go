// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics shows to Prometheus what a proxy does. [Metrics] is told the facts
// of each sync, reads a snapshot of what the kernel counted at each scrape, and
// serves both over HTTP. Names and meanings are those of kube-proxy where it has the
// metric, and begin with veridict_ otherwise; docs/metrics.md lists all.
//
// A scrape asks nothing of the kernel and takes no lock that a sync waits for.
//
// Nothing is global: everything is registered with the registry of the [Options].
// All methods are safe for concurrent use.
//
// # Series of Services and endpoints
//
// The number of series is bounded. A Service has a series of its own from its first
// connection on, until it is gone, as long as there are fewer than
// [Options.ServiceLimit]; endpoints likewise. Where a first scrape finds more, those
// with most connections have one. All other connections are summed in one series
// whose service label is "_other", which no Service can be called. Connections never
// pass from one series to another, since Prometheus takes a counter that decreases
// for one that was restarted: a Service that gets its series late starts it at the
// connections that came since.
package metrics

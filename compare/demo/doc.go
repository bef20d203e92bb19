// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package demo is what `veridict demo` does: it builds a node with pods out of
// network namespaces, lets the proxy serve the small shop of deploy/examples
// there, opens thousands of real connections, also while a Service is scaled,
// and reports how they spread over the endpoints.
//
// Clients, endpoints and the kernel's probes count the connections, each for itself,
// and have to agree to the last one. Each endpoint must belong to one ServicePort.
//
// [Run] measures and returns a [Report]; rendering it ([Report.WriteText],
// [Report.WriteJSON]) is apart from that and pure. The proxy comes in as a
// [StartProxy] function: this package programs nothing itself.
//
// Run must be called in a process that testbed.Isolate has started, and says so
// in its error otherwise. It removes what it made before it returns, whatever
// the outcome. A failed connection is a finding, not an error, and so are counts that
// do not agree: see [Report.Err].
package demo

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package localhost serves NodePorts on 127.0.0.1 and ::1: the kernel does not route
// packets with a loopback address away from the node. [Syncer] stands before another
// [dataplane.Syncer] and does so, after each success, for the NodePorts of the state
// where the settings ask for it.
//
// A [Redirector] leads connections over TCP and UDP to the node's own address before
// they are made, so that the rules serve them. Where there is none, or the node has no
// address that takes NodePorts, a proxy in user space listens, for TCP only. It stays
// until its ServicePort ends, so that a redirection cuts no connection.
//
// The proxy does what the rules do for connections of the node itself: any endpoint that
// policy Cluster allows, in proportion to the weights; with session affinity the same
// one as before while connections keep coming. Connections that are open survive a
// change of the endpoints, and end with their ServicePort.
//
// A port that cannot be redirected or listened on is logged once and tried again; it
// is no failure of the sync. What neither serves is rejected by the rules.
package localhost

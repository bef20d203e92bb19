// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package localhost serves TCP NodePorts on 127.0.0.1 and ::1 by a proxy in user
// space: the kernel does not route packets with a loopback address away from the
// node. [Syncer] stands before another [dataplane.Syncer] and listens, after each
// success, on the NodePorts of the state where the settings ask for it.
//
// It does what the rules do for connections of the node itself: any endpoint that
// policy Cluster allows, in proportion to the weights; with session affinity the same
// one as before while connections keep coming. Connections that are open survive a
// change of the endpoints, and end with their ServicePort.
//
// A port that cannot be listened on is logged once and tried again; it is no failure
// of the sync. UDP and SCTP are rejected by the rules.
package localhost

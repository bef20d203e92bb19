// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package conntrack removes UDP flows to endpoints that do not serve any more.
//
// Rules decide about the first packet of a flow only. A client that goes on sending
// from one port would be taken to an endpoint that is gone for as long as it sends,
// and one that began before its Service had endpoints to none at all. [Syncer] stands
// before another [dataplane.Syncer] and compares, after each success, the flows that
// the kernel tracks with the endpoints that serve. It goes by the state and not by
// events, so that a sync that fails or comes late loses nothing. ServicePorts that
// the other Syncer has rejected are looked at when it has programmed them.
//
// Flows are looked at twice, for packets that were under way, and for some seconds
// where session affinity may have taken a client back.
//
// TCP and SCTP are left alone: a connection of theirs ends when its peer does. Flows
// to endpoints that serve are never touched, at a restart neither.
//
// A failure to list or delete flows is logged and tried again, and is no failure of
// the sync.
package conntrack

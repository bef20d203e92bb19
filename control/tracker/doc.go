// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package tracker keeps the desired state: it takes changes of converted
// objects and yields what they change for the dataplane.
//
// A batch costs what it touches: the ServicePorts of the Services in it and of
// Services that compete with those for an address, never all of them. The
// result depends on the objects only, not on the order in which they came.
//
// Two Services that claim one address, protocol and port, or one NodePort, cannot
// both be served. A cluster IP goes before an external IP of another Service;
// otherwise the older Service has it (by creation time, then by namespace and name;
// an object without a creation time counts as younger than any with one). The other
// is reported and takes over as soon as the first lets go. Without its cluster IP a
// port is not served at all, without anything else it is served on what is left.
//
// A Tracker is not safe for concurrent use.
package tracker

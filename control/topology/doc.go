// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package topology chooses which endpoints of a ServicePort receive traffic.
//
// Everything here is pure: endpoints in, the list for one purpose out. The
// caller merges EndpointSlices first, so that each address and port comes once.
package topology

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package host reads and sets what belongs to the node rather than to the rules:
// the addresses of its interfaces, and the limits of connection tracking.
//
// Everything is about the network namespace of the calling thread. Functions are
// safe for concurrent use and return errors that name the file or the request, and
// what to do about it.
package host

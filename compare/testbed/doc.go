// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package testbed builds small clusters out of network namespaces: a node,
// pods with addresses of their own, endpoints that answer real HTTP and UDP,
// and clients that open real connections. The demo, the A/B harness and the
// root tests share it.
//
// Namespaces have no name and leave nothing on disk: descriptors hold them, so
// that they vanish with the process, even if it is killed. Whole processes are
// put in a namespace of their own with [Isolate]; single functions run in one
// with [Namespace.Do].
//
// All of it needs root ([Preflight] says so in words) and works on Linux only.
// Functions return errors that name the pod, link or address concerned. Unless
// a type says otherwise its methods are not safe for concurrent use.
//
// This package programs no Service: that is left to whatever is being shown,
// compared or tested.
package testbed

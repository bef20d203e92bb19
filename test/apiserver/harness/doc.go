// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package harness runs a control plane of real programs, etcd and kube-apiserver, with
// a node made of network namespaces, on which veridict or kube-proxy follows it.
//
// Everything is in the network namespace of the process, which must be isolated, and
// on its loopback interface. All programs end with the process, however it ends.
package harness

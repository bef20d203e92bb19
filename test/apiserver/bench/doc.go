// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures veridict beside kube-proxy v1.37 in nftables mode: the same
// API server, objects, machine and client, in one run. "make bench-apiserver" runs it.
package main

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package apiserver tests veridict against a real API server, and kube-proxy's place
// taken and given back on one node, with real connections. It is a module of its own:
// the programs are built from k8s.io/kubernetes, which needs its staging modules
// replaced.
package apiserver

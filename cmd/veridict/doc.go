// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Command veridict serves the Services of a Kubernetes cluster on this node with
// nftables, in place of kube-proxy.
//
// This package turns flags into dependencies and runs them; what they do is in
// the packages that it imports. It is the only place where signals, exit codes
// and the log's form are decided. The exit code is 0 if all went well, 1 if
// something failed or the kernel differs from the objects, and 2 for mistakes
// on the command line or in the configuration. Errors are one line on standard
// error, results go to standard output.
package main

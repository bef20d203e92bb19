// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

// make generate runs this, with the clang and the flags that test/generate.sh names.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel,bpfeb kernel sockets.c

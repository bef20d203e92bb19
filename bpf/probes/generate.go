// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

// make generate runs this, with the clang and the flags that test/generate.sh names.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel,bpfeb -type selection -type selection4_key -type selection6_key -type latency_key -type histogram -type loss_counts -type frontend_key -type frontend -type stamp -type control_block probes probes.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel,bpfeb -no-global-types fentry fentry.c

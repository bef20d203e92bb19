// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package probes counts in the kernel which endpoint each new connection got, and
// times how long its first packet spent in the translation of destinations. The
// programs are in probes.c, the maps in maps.h, both compiled into this package:
// clang is needed to change them only.
//
// [Open] attaches two BPF netfilter programs around the NAT hook, in prerouting and
// output, for IPv4 and IPv6, in the network namespace of the calling thread. They
// change no packet and no verdict. They need Linux 6.4, CAP_NET_ADMIN, CAP_BPF and
// CAP_PERFMON; where something is missing the error is an [Unsupported] that says
// what.
//
// With a pin path, maps and links outlive the process, and the next one goes on with
// the same counters: its programs are attached before the old ones go, and each
// connection is counted once. Without, everything ends with the process.
//
// A [Probes] is for one goroutine at a time. Nothing here waits for anything but the
// kernel.
package probes

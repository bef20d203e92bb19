// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package probes counts in the kernel which endpoint each new connection got, and
// times how long its first packet spent in the translation of destinations. The
// programs are in count.h, the maps in maps.h, both compiled into this package: clang
// is needed to change them only.
//
// [Open] attaches them in one of two ways, for prerouting and output, IPv4 and IPv6,
// and the network namespace of the calling thread. They change no packet and no
// verdict.
//
//   - [Netfilter] (probes.c): two BPF netfilter programs around the NAT hook. They
//     need Linux 6.4, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON.
//   - [Fentry] (fentry.c), for kernels that have none: tracing programs at the start
//     and the end of nf_nat_inet_fn, the function that the hook calls. They need
//     BTF with this function, hence nf_nat loaded, an architecture that traces
//     functions so, and CAP_SYS_ADMIN if nf_nat is a module.
//
// Where something is missing the error is an [Unsupported] that says what. Both count
// the same, into the same maps, and one can take over from the other. What differs:
//
//   - Fentry times the function itself, without the walk through the hooks around it.
//     It sees no packet before there is a NAT chain in the namespace; Netfilter counts
//     it as missed.
//   - Fentry's programs run for packets of all network namespaces. Those of others cost
//     two calls and are left alone. The namespace is known by its inode, and pinned
//     programs do not keep it: once it has gone, one that gets its number is taken
//     for it.
//   - The kernel does not call a program of Fentry that is running on the same processor
//     already. Where, within these few microseconds of an outgoing first packet, an
//     interrupt sends the first packet of another connection, or (on kernels with
//     preempt=full) another thread does, that one is not counted. Prerouting is not
//     affected: nothing that translates there comes in between.
//   - Nothing can be in the way of Fentry's programs, and nft and bpftool net do not list
//     them; bpftool link does. The kernel lets go of them a moment after
//     [Probes.Detach] and [Remove]; they do not count any more.
//
// With a pin path, maps and links outlive the process, and the next one goes on with
// the same counters: its programs are attached before the old ones go, and each
// connection is counted once. Without, everything ends with the process.
//
// A [Probes] is for one goroutine at a time. Nothing here waits for anything but the
// kernel.
package probes

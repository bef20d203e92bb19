// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package sockets serves NodePorts on loopback addresses without a copy in user
// space: BPF programs on a cgroup replace the address in connect and sendmsg by one of
// the node's own, which other rules serve, and put it back in recvmsg and
// getpeername. No packet with a loopback address is routed.
//
// [Open] loads and attaches the programs for the network namespace of the calling
// thread; processes of other namespaces in the same cgroup are left alone.
// [Programs.Redirect] says which NodePorts are led where: TCP and UDP, any address of
// 127.0.0.0/8 and ::1, IPv4-mapped addresses of IPv6 sockets included. What is not
// redirected is as if the programs were not there.
//
// Left alone, too, and counted, are clients that have bound their socket to a loopback
// address or to an interface before: their packets could not leave it. Clients see
// an address of the node's as their own in getsockname, and those of multipath TCP
// as that of their peer, too. A UDP socket that asks the same NodePort at both
// addresses hears the loopback one from both.
//
// The maps take 8 MiB of the kernel's memory.
//
// It needs Linux 5.14, a cgroup2 mount, CAP_BPF and CAP_NET_ADMIN; [Open] says in
// words which of these is missing. Programs is safe for concurrent use, apart from
// Close.
package sockets

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package nftables programs a [dataplane.State] into the tables "ip veridict"
// and "ip6 veridict".
//
// The whole cluster is served by a constant number of sets and maps. A verdict
// map picks a dispatch chain by the number of endpoints, the chain draws a
// bucket, and one map per protocol turns VIP, port and bucket into an endpoint.
// ARCHITECTURE.md has the picture.
//
// # Structure and elements
//
// Tables, chains, rules and declarations are few and rare: they are written by
// the nft program, through knftables. Elements are many and change all the
// time: they are written over netlink, by an encoder of this package that leaves
// no garbage. Both stay readable by "nft list".
//
// # Promises
//
// Rows are added no later than the verdict that needs them and removed a while
// after no verdict does, so a packet whose lookups race a commit finds its row.
// The cost of [Syncer.Sync] is in proportion to the update. A transaction is
// closed when it holds [Options].BatchElements elements; it holds more only
// because what publishes one ServicePort stays together. Only the two tables
// named veridict are ever written.
//
// An element that the kernel refuses is found and reported as a rejection of
// its ServicePort; the others are programmed. All other errors mean that
// memory and kernel may differ, and that [Syncer.Reset] has to be called.
//
// A [Syncer] is not safe for concurrent use, except for [Syncer.Watch]. It works
// in the network namespace of the calling thread.
package nftables

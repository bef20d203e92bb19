/* SPDX-FileCopyrightText: The veridict authors */
/* SPDX-License-Identifier: GPL-2.0-only */

/*
 * The few fields of kernel types that the probes read. CO-RE finds where they are
 * on the running kernel, so their order and neighbours do not matter here.
 */

#ifndef VERIDICT_KERNEL_H
#define VERIDICT_KERNEL_H

#include <linux/types.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff {
	/* A conntrack entry, with enum ip_conntrack_info in the lowest bits. */
	unsigned long _nfct;
	__u16 transport_header;
	unsigned char *head;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct nf_hook_state {
	__u8 hook;
	__u8 pf;
	struct net *net;
};

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};

union nf_inet_addr {
	__u32 all[4];
	__u32 ip;
	__u32 ip6[4];
};

union nf_conntrack_man_proto {
	__be16 all;
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
};

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
		__u8 protonum;
	} dst;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
};

struct tcphdr {
	__be32 seq;
};

#pragma clang attribute pop

/* enum ip_conntrack_info, and the bits of _nfct that hold it. */
#define IP_CT_NEW 2
#define NFCT_INFOMASK 7UL

/* enum ip_conntrack_status */
#define IPS_CONFIRMED (1UL << 3)
#define IPS_DST_NAT (1UL << 5)

/* enum nf_inet_hooks */
#define NF_INET_PRE_ROUTING 0
#define NF_INET_LOCAL_OUT 3

#define NFPROTO_IPV4 2

#define NF_ACCEPT 1

#endif

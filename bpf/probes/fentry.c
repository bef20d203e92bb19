//go:build ignore

/* SPDX-FileCopyrightText: The veridict authors */
/* SPDX-License-Identifier: GPL-2.0-only */

/*
 * The same for kernels without BPF netfilter programs: tracing programs at the start
 * and the end of the function that translates addresses. It is called in all hooks of
 * all network namespaces.
 *
 * A program that interrupts itself is left out by the kernel, hence one for each hook:
 * softirqs come in between when this node's own packets are translated, but not when
 * others' are.
 */

#include "count.h"

#include <bpf/bpf_tracing.h>

/* The inode of the network namespace to look at. */
volatile const __u32 netns = 0;

/* unconfirmed returns the conntrack entry of a packet that makes a connection. */
static __always_inline const struct nf_conn *unconfirmed(const struct sk_buff *skb)
{
	unsigned long nfct = skb->_nfct;
	const struct nf_conn *ct;

	if ((nfct & NFCT_INFOMASK) != IP_CT_NEW)
		return 0;
	ct = (const void *)(nfct & ~NFCT_INFOMASK);
	if (BPF_CORE_READ(ct, status) & IPS_CONFIRMED)
		return 0;
	return ct;
}

static __always_inline void read_addr(__u32 *to, const union nf_inet_addr *from, int ipv4)
{
	bpf_core_read(to, sizeof(*from), from);
	if (ipv4)
		to[1] = to[2] = to[3] = 0;
}

static __always_inline void read_connection(struct connection *c, const struct nf_conn *ct, const struct sk_buff *skb)
{
	const struct tcphdr *tcp;

	c->translated = (BPF_CORE_READ(ct, status) & IPS_DST_NAT) != 0;
	c->protocol = BPF_CORE_READ(ct, tuplehash[0].tuple.dst.protonum);
	read_addr(c->client, &ct->tuplehash[0].tuple.src.u3, c->ipv4);
	read_addr(c->vip, &ct->tuplehash[0].tuple.dst.u3, c->ipv4);
	read_addr(c->endpoint, &ct->tuplehash[1].tuple.src.u3, c->ipv4);
	c->client_port = bpf_ntohs(BPF_CORE_READ(ct, tuplehash[0].tuple.src.u.all));
	c->port = bpf_ntohs(BPF_CORE_READ(ct, tuplehash[0].tuple.dst.u.all));
	c->endpoint_port = bpf_ntohs(BPF_CORE_READ(ct, tuplehash[1].tuple.src.u.all));
	if (c->protocol != IPPROTO_TCP)
		return;
	tcp = (const void *)(skb->head + skb->transport_header);
	c->sequence = BPF_CORE_READ(tcp, seq);
}

static __always_inline int is_ours(const struct nf_hook_state *state, __u8 number)
{
	return state->hook == number && state->net->ns.inum == netns;
}

static __always_inline int enter(const struct sk_buff *skb, const struct nf_hook_state *state, __u8 number, __u32 hook)
{
	if (is_ours(state, number) && unconfirmed(skb) && active())
		stamp(skb, hook);
	return 0;
}

static __always_inline int leave(const struct sk_buff *skb, const struct nf_hook_state *state, int verdict, __u8 number, __u32 hook)
{
	const struct nf_conn *ct;
	struct connection c = {};
	__u64 end, start;

	if (!is_ours(state, number) || verdict != NF_ACCEPT)
		return 0;
	ct = unconfirmed(skb);
	if (!ct)
		return 0;
	end = bpf_ktime_get_ns();
	if (!take(skb, hook, &start))
		return 0;
	c.ipv4 = state->pf == NFPROTO_IPV4;
	read_connection(&c, ct, skb);
	count(&c, hook, start, end);
	return 0;
}

SEC("fentry/nf_nat_inet_fn")
int BPF_PROG(enter_prerouting, void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	return enter(skb, state, NF_INET_PRE_ROUTING, HOOK_PREROUTING);
}

SEC("fentry/nf_nat_inet_fn")
int BPF_PROG(enter_output, void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	return enter(skb, state, NF_INET_LOCAL_OUT, HOOK_OUTPUT);
}

SEC("fexit/nf_nat_inet_fn")
int BPF_PROG(leave_prerouting, void *priv, struct sk_buff *skb, const struct nf_hook_state *state, unsigned int verdict)
{
	return leave(skb, state, verdict, NF_INET_PRE_ROUTING, HOOK_PREROUTING);
}

SEC("fexit/nf_nat_inet_fn")
int BPF_PROG(leave_output, void *priv, struct sk_buff *skb, const struct nf_hook_state *state, unsigned int verdict)
{
	return leave(skb, state, verdict, NF_INET_LOCAL_OUT, HOOK_OUTPUT);
}

char LICENSE[] SEC("license") = "GPL";

//go:build ignore

/* SPDX-FileCopyrightText: The veridict authors */
/* SPDX-License-Identifier: GPL-2.0-only */

/*
 * Two netfilter programs around the hook that translates destinations, in
 * prerouting and output: probe_before stamps the first packet of a connection,
 * probe_after looks at what became of it. Packets of confirmed connections leave
 * both after two loads.
 */

#include "count.h"

extern void *bpf_rdonly_cast(void *obj, __u32 btf_id) __ksym;

/* unconfirmed returns the conntrack entry of a packet that makes a connection. */
static __always_inline const struct nf_conn *unconfirmed(const struct sk_buff *skb)
{
	unsigned long nfct = skb->_nfct;
	const struct nf_conn *ct;

	if ((nfct & NFCT_INFOMASK) != IP_CT_NEW)
		return 0;
	ct = bpf_rdonly_cast((void *)(nfct & ~NFCT_INFOMASK), bpf_core_type_id_kernel(struct nf_conn));
	if (ct->status & IPS_CONFIRMED)
		return 0;
	return ct;
}

static __always_inline void copy_addr(__u32 *to, const union nf_inet_addr *from, int ipv4)
{
	to[0] = from->all[0];
	/* An IPv4 entry has zeroes behind its address, but need not. */
	to[1] = ipv4 ? 0 : from->all[1];
	to[2] = ipv4 ? 0 : from->all[2];
	to[3] = ipv4 ? 0 : from->all[3];
}

static __always_inline void read_connection(struct connection *c, const struct nf_conn *ct, const struct sk_buff *skb)
{
	const struct nf_conntrack_tuple *orig = &ct->tuplehash[0].tuple;
	const struct nf_conntrack_tuple *reply = &ct->tuplehash[1].tuple;
	const struct tcphdr *tcp;

	c->translated = (ct->status & IPS_DST_NAT) != 0;
	c->protocol = orig->dst.protonum;
	copy_addr(c->client, &orig->src.u3, c->ipv4);
	copy_addr(c->vip, &orig->dst.u3, c->ipv4);
	copy_addr(c->endpoint, &reply->src.u3, c->ipv4);
	c->client_port = bpf_ntohs(orig->src.u.all);
	c->port = bpf_ntohs(orig->dst.u.all);
	c->endpoint_port = bpf_ntohs(reply->src.u.all);
	if (c->protocol != IPPROTO_TCP)
		return;
	tcp = bpf_rdonly_cast(skb->head + skb->transport_header, bpf_core_type_id_kernel(struct tcphdr));
	c->sequence = tcp->seq;
}

static __always_inline __u32 hook_of(const struct nf_hook_state *state)
{
	return state->hook == NF_INET_LOCAL_OUT ? HOOK_OUTPUT : HOOK_PREROUTING;
}

SEC("netfilter")
int probe_before(struct bpf_nf_ctx *ctx)
{
	if (unconfirmed(ctx->skb) && active())
		stamp(ctx->skb, hook_of(ctx->state));
	return NF_ACCEPT;
}

SEC("netfilter")
int probe_after(struct bpf_nf_ctx *ctx)
{
	const struct nf_conn *ct = unconfirmed(ctx->skb);
	__u32 hook = hook_of(ctx->state);
	struct connection c = {};
	__u64 end, start;

	if (!ct)
		return NF_ACCEPT;
	end = bpf_ktime_get_ns();
	if (!take(ctx->skb, hook, &start))
		return NF_ACCEPT;
	c.ipv4 = ctx->state->pf == NFPROTO_IPV4;
	read_connection(&c, ct, ctx->skb);
	count(&c, hook, start, end);
	return NF_ACCEPT;
}

char LICENSE[] SEC("license") = "GPL";

/* SPDX-FileCopyrightText: The veridict authors */
/* SPDX-License-Identifier: GPL-2.0-only */

/*
 * What both kinds of programs do with a first packet: stamp it before its destination
 * is translated, and count it afterwards. How they read the kernel's memory differs.
 */

#ifndef VERIDICT_COUNT_H
#define VERIDICT_COUNT_H

#include "kernel.h"
#include "maps.h"

/*
 * Programs of two generations are attached while an agent takes over from another.
 * Those of the generation in the control map count.
 */
volatile const __u32 generation = 1;

/*
 * connection is what conntrack knows of a first packet, with ports in host order. The
 * sequence number is that of TCP, as it is in the packet.
 */
struct connection {
	__u32 client[4];
	__u32 vip[4];
	__u32 endpoint[4];
	__u16 client_port, port, endpoint_port;
	__u8 protocol;
	__u8 ipv4;
	__u32 sequence;
	__u32 translated;
};

static __always_inline int active(void)
{
	__u32 zero = 0;
	struct control_block *c = bpf_map_lookup_elem(&control, &zero);

	return c && c->generation == generation;
}

static __always_inline struct stamp *stamp_of(__u32 hook)
{
	return bpf_map_lookup_elem(&stamps, &hook);
}

/* stamp notes when a packet came to a hook. */
static __always_inline void stamp(const struct sk_buff *skb, __u32 hook)
{
	struct stamp *s = stamp_of(hook);

	if (!s)
		return;
	s->skb = (__u64)skb;
	s->generation = generation;
	s->start = bpf_ktime_get_ns();
}

static __always_inline void count_loss(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static __always_inline struct loss_counts *all_losses(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&losses, &zero);
}

/* bucket_of returns which bucket of a histogram a duration falls into. */
static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 log = 0;

	/* The logarithm by halves: BPF has no instruction for it. */
	if (ns >> 32)
		return HISTOGRAM_BUCKETS - 1;
	if (ns >> 16) {
		ns >>= 16;
		log += 16;
	}
	if (ns >> 8) {
		ns >>= 8;
		log += 8;
	}
	if (ns >> 4) {
		ns >>= 4;
		log += 4;
	}
	if (ns >> 2) {
		ns >>= 2;
		log += 2;
	}
	log += ns >> 1;
	if (log < HISTOGRAM_SHIFT)
		return 0;
	log -= HISTOGRAM_SHIFT;
	return log < HISTOGRAM_BUCKETS ? log : HISTOGRAM_BUCKETS - 1;
}

static __always_inline void count_latency(const struct connection *c, __u32 hook, __u8 outcome, __u64 ns)
{
	struct latency_key key = { .family = c->ipv4 ? 4 : 6, .hook = hook, .outcome = outcome };
	struct histogram *h = bpf_map_lookup_elem(&latency, &key);
	__u32 bucket = bucket_of(ns);

	/* The compiler knows the bound, the verifier has to see it. */
	barrier_var(bucket);
	if (!h || bucket >= HISTOGRAM_BUCKETS)
		return;
	__sync_fetch_and_add(&h->counts[bucket], 1);
	__sync_fetch_and_add(&h->sum_ns, ns);
}

/*
 * frontend_of returns the frontend that a connection is for. A NodePort has no
 * address; what is not translated is not taken for one, as it may be for anybody.
 */
static __always_inline struct frontend *frontend_of(const struct connection *c)
{
	struct frontend_key key = {
		.port = c->port, .protocol = c->protocol, .family = c->ipv4 ? 4 : 6,
	};
	struct frontend *f;

	__builtin_memcpy(key.addr, c->vip, sizeof(key.addr));
	f = bpf_map_lookup_elem(&frontends, &key);
	if (f || !c->translated)
		return f;
	__builtin_memset(key.addr, 0, sizeof(key.addr));
	return bpf_map_lookup_elem(&frontends, &key);
}

/* mix is the finaliser of MurmurHash3. */
static __always_inline __u32 mix(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	return h ^ h >> 16;
}

/*
 * retransmitted says whether a packet is a copy of one that made a connection
 * before and then got lost on this node: a SYN with the same addresses, ports and
 * sequence number. Only as many are remembered as there are slots.
 */
static __always_inline int retransmitted(const struct connection *c)
{
	struct syn now, *last;
	__u32 h = 0, slot;

	if (c->protocol != IPPROTO_TCP)
		return 0;
	for (int i = 0; i < 4; i++)
		h = mix(h ^ c->client[i]) + c->vip[i];
	h = mix(h ^ (__u32)c->client_port << 16 ^ c->port);
	now.sequence = c->sequence;
	now.tuple = h;
	slot = mix(h) % SYN_SLOTS;
	last = bpf_map_lookup_elem(&syns, &slot);
	if (!last)
		return 0;
	if (last->tuple == now.tuple && last->sequence == now.sequence)
		return 1;
	*last = now;
	return 0;
}

/* same_addr compares addresses in struct pin, where they are aligned. */
static __always_inline int same_addr(const __u8 *a, const __u8 *b)
{
	const __u64 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1];
}

/*
 * pinned says whether session affinity chose the endpoint: the client's last
 * connection to the Service was to the same, not too long ago.
 */
static __always_inline int pinned(const struct connection *c, const struct frontend *f, __u64 now)
{
	struct pin_key key = { .service = f->service };
	struct pin pin = { .last_ns = now, .port = c->endpoint_port }, *last;
	int same = 0;

	__builtin_memcpy(key.client, c->client, sizeof(key.client));
	__builtin_memcpy(pin.endpoint, c->endpoint, sizeof(pin.endpoint));
	last = bpf_map_lookup_elem(&pins, &key);
	if (last)
		same = now - last->last_ns < (__u64)f->affinity_seconds * 1000000000ULL &&
		       last->port == pin.port && same_addr(last->endpoint, pin.endpoint);
	bpf_map_update_elem(&pins, &key, &pin, BPF_ANY);
	return same;
}

static __always_inline struct selection *selection_in(void *map, const void *key, __u64 now)
{
	struct selection fresh = { .first_ns = now, .last_ns = now };
	struct selection *s = bpf_map_lookup_elem(map, key);

	if (s)
		return s;
	/* Another CPU may be faster; its counter is as good. */
	bpf_map_update_elem(map, key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, key);
}

static __always_inline struct selection *selection_of(const struct connection *c, __u64 now)
{
	if (c->ipv4) {
		struct selection4_key key = {
			.port = c->port, .protocol = c->protocol, .endpoint_port = c->endpoint_port,
		};
		__builtin_memcpy(key.vip, c->vip, sizeof(key.vip));
		__builtin_memcpy(key.endpoint, c->endpoint, sizeof(key.endpoint));
		return selection_in(&selections4, &key, now);
	}
	struct selection6_key key = {
		.port = c->port, .protocol = c->protocol, .endpoint_port = c->endpoint_port,
	};
	__builtin_memcpy(key.vip, c->vip, sizeof(key.vip));
	__builtin_memcpy(key.endpoint, c->endpoint, sizeof(key.endpoint));
	return selection_in(&selections6, &key, now);
}

static __always_inline void count_selection(const struct connection *c, const struct frontend *f)
{
	__u64 now = bpf_ktime_get_boot_ns();
	struct selection *s = selection_of(c, now);

	if (!s) {
		struct loss_counts *l = all_losses();

		if (l)
			count_loss(&l->full);
		return;
	}
	s->last_ns = now;
	if (c->translated && f->affinity_seconds && pinned(c, f, now))
		__sync_fetch_and_add(&s->pinned, 1);
	else
		__sync_fetch_and_add(&s->drawn, 1);
}

/*
 * take returns whether this program has to count the packet, and when it was
 * stamped, 0 if that is not known.
 *
 * Each packet is counted by the generation that stamped it. Where another packet has
 * taken the stamp's place, by the active one.
 */
static __always_inline int take(const struct sk_buff *skb, __u32 hook, __u64 *start)
{
	struct stamp *s = stamp_of(hook);
	struct loss_counts *l;

	*start = 0;
	if (!s)
		return 0;
	if (s->skb == (__u64)skb) {
		if (s->generation != generation)
			return 0;
		*start = s->start;
	} else if (!active()) {
		return 0;
	}
	/* For the program of the other generation, which may come next. */
	s->skb = (__u64)skb;
	s->generation = generation;
	s->start = 0;
	if (!*start) {
		l = all_losses();
		if (l)
			count_loss(&l->unmatched);
	}
	return 1;
}

static __always_inline int counted_protocol(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* count counts what take has taken. It was translated until the given time. */
static __always_inline void count(const struct connection *c, __u32 hook, __u64 start, __u64 end)
{
	struct loss_counts *l;
	struct frontend *f;
	__u8 outcome;

	if (!counted_protocol(c->protocol))
		return;
	f = frontend_of(c);
	outcome = !c->translated ? OUTCOME_MISSED : f ? OUTCOME_TRANSLATED : OUTCOME_FOREIGN;
	if (start)
		count_latency(c, hook, outcome, end - start);
	if (!f)
		return;
	if (!retransmitted(c)) {
		count_selection(c, f);
		return;
	}
	l = all_losses();
	if (l)
		count_loss(&l->retransmitted);
}

#endif

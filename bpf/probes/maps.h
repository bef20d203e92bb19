/* SPDX-FileCopyrightText: The veridict authors */
/* SPDX-License-Identifier: GPL-2.0-only */

/*
 * The maps of the probes. All are pinned, and "bpftool map dump pinned" prints them
 * with the names of these fields: addresses are bytes in network order, an IPv4
 * address in the first four; ports are numbers in host order.
 */

#ifndef VERIDICT_MAPS_H
#define VERIDICT_MAPS_H

#include <linux/bpf.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* selections4, selections6: how often a frontend's connections got an endpoint. */
struct selection4_key {
	__u8 vip[4];
	__u16 port;
	__u16 protocol;
	__u8 endpoint[4];
	__u16 endpoint_port;
};

struct selection6_key {
	__u8 vip[16];
	__u16 port;
	__u16 protocol;
	__u8 endpoint[16];
	__u16 endpoint_port;
};

struct selection {
	__u64 drawn;
	__u64 pinned;
	/* Nanoseconds since the machine was booted. */
	__u64 first_ns;
	__u64 last_ns;
};

/* latency: how long the translation of first packets took. */
#define HISTOGRAM_BUCKETS 26
/* Bucket 0 ends at 1 << (HISTOGRAM_SHIFT + 1) ns. */
#define HISTOGRAM_SHIFT 5

#define HOOK_PREROUTING 0
#define HOOK_OUTPUT 1

#define OUTCOME_TRANSLATED 0
#define OUTCOME_MISSED 1
#define OUTCOME_FOREIGN 2

struct latency_key {
	__u8 family;
	__u8 hook;
	__u8 outcome;
};

struct histogram {
	__u64 counts[HISTOGRAM_BUCKETS];
	__u64 sum_ns;
};

/* losses: what was not counted as a selection, or could not be timed. */
struct loss_counts {
	__u64 full;
	__u64 unmatched;
	__u64 retransmitted;
};

/* frontends: written by the agent. */
struct frontend_key {
	__u8 addr[16];
	__u16 port;
	__u8 protocol;
	__u8 family;
};

struct frontend {
	/* The same for all frontends that share the pins of session affinity. */
	__u32 service;
	__u32 affinity_seconds;
};

/* pins: which endpoint a client had last, where there is session affinity. */
struct pin_key {
	__u8 client[16];
	__u32 service;
};

struct pin {
	__u64 last_ns;
	__u8 endpoint[16];
	__u16 port;
	__u8 unused[6];
};

/* stamps: when the packet that this CPU translates came to the hook. */
struct stamp {
	__u64 skb;
	__u64 start;
	__u64 generation;
};

/* syns: the last connection attempts, by a hash of addresses and ports. */
#define SYN_SLOTS 65536

struct syn {
	__u32 tuple;
	__u32 sequence;
};

/* control: written by the agent. */
struct control_block {
	/* Programs of other generations count nothing. */
	__u32 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct selection4_key);
	__type(value, struct selection);
} selections4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct selection6_key);
	__type(value, struct selection);
} selections6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 12);
	__type(key, struct latency_key);
	__type(value, struct histogram);
} latency SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct loss_counts);
} losses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct pin_key);
	__type(value, struct pin);
} pins SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct stamp);
} stamps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SYN_SLOTS);
	__type(key, __u32);
	__type(value, struct syn);
} syns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control_block);
} control SEC(".maps");

#endif

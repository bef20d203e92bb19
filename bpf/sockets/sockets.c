/* SPDX-FileCopyrightText: The veridict authors */
/* SPDX-License-Identifier: GPL-2.0-only */

//go:build ignore

/*
 * A client of the node that names a loopback address and a NodePort gets the
 * node's own address in its place, before there is a packet: nftables serves that
 * one. What the kernel tells the client about its peer is turned back.
 *
 * IPv4 addresses are kept in the IPv4-mapped form, as IPv6 sockets have them.
 */

#include "uapi.h"

char LICENSE[] SEC("license") = "GPL";

/* The network namespace whose NodePorts are in the map. */
const volatile __u64 netns_cookie;

/* Bytes, so that bpftool prints them as people write them; handled as words. */
struct address {
	__u8 bytes[16];
} __attribute__((aligned(4)));

/* Ports are in the machine's order, so that bpftool prints them as people do. */
struct node_port {
	__u8 ip_version;
	__u8 protocol;
	__u16 port;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct node_port);
	__type(value, struct address);
} node_ports SEC(".maps");

/* Where the kernel believes the peer of a socket to be. */
struct peer {
	__u64 socket_cookie;
	struct address node;
	__u64 port;
};

/* The address that the client named. Sockets end without notice, hence LRU. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct peer);
	__type(value, struct address);
} redirected SEC(".maps");

struct counts {
	__u64 ipv4_tcp_connects;
	__u64 ipv6_tcp_connects;
	__u64 ipv4_udp_connects;
	__u64 ipv6_udp_connects;
	__u64 ipv4_udp_sends;
	__u64 ipv6_udp_sends;
	/* Left alone: the client has bound its socket to a loopback address. */
	__u64 bound;
	/* Redirected, but the client will see the node's address as its peer. */
	__u64 unremembered;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* Programs of this type can be preempted by each other. */
#define count(field)                                                        \
	do {                                                                \
		__u32 zero = 0;                                             \
		struct counts *all = bpf_map_lookup_elem(&counts, &zero);   \
		if (all)                                                    \
			__sync_fetch_and_add(&all->field, 1);               \
	} while (0)

static __always_inline bool is_loopback4(__u32 ip)
{
	return (ip & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

static __always_inline bool is_loopback6(const __u32 ip[4])
{
	return !ip[0] && !ip[1] && !ip[2] && ip[3] == bpf_htonl(1);
}

static __always_inline bool is_mapped(const __u32 ip[4])
{
	return !ip[0] && !ip[1] && ip[2] == bpf_htonl(0xffff);
}

static __always_inline struct address address_of(const __u32 words[4])
{
	struct address address;

	__builtin_memcpy(address.bytes, words, sizeof(address.bytes));
	return address;
}

static __always_inline struct address mapped(__u32 ip)
{
	__u32 words[4] = { 0, 0, bpf_htonl(0xffff), ip };

	return address_of(words);
}

static __always_inline void set4(struct bpf_sock_addr *ctx, const struct address *address)
{
	__u32 ip;

	__builtin_memcpy(&ip, address->bytes + 12, sizeof(ip));
	ctx->user_ip4 = ip;
}

static __always_inline void set6(struct bpf_sock_addr *ctx, const struct address *address)
{
	__u32 words[4];

	__builtin_memcpy(words, address->bytes, sizeof(words));
	ctx->user_ip6[0] = words[0];
	ctx->user_ip6[1] = words[1];
	ctx->user_ip6[2] = words[2];
	ctx->user_ip6[3] = words[3];
}

/*
 * Whether the client has chosen a source that may not leave the loopback interface,
 * wherever it sends to.
 */
static __always_inline bool is_bound(const struct bpf_sock_addr *ctx, __u8 ip_version)
{
	const struct bpf_sock *sk = ctx->sk;

	if (sk->bound_dev_if)
		return true;
	if (ip_version == 4)
		return is_loopback4(sk->src_ip4);
	__u32 source[4] = { sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3] };
	return is_loopback6(source);
}

static __always_inline struct peer peer_of(struct bpf_sock_addr *ctx, const struct address *node)
{
	return (struct peer){
		.socket_cookie = bpf_get_socket_cookie(ctx),
		.node = *node,
		.port = bpf_ntohs(ctx->user_port),
	};
}

static __always_inline bool same(const struct address *a, const struct address *b)
{
	__u32 x[4], y[4];

	__builtin_memcpy(x, a->bytes, sizeof(x));
	__builtin_memcpy(y, b->bytes, sizeof(y));
	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* A lookup keeps an entry from becoming the least recently used one. */
static __always_inline void remember(const struct peer *peer, const struct address *named)
{
	const struct address *known = bpf_map_lookup_elem(&redirected, peer);

	if (known && same(known, named))
		return;
	if (bpf_map_update_elem(&redirected, peer, named, BPF_ANY))
		count(unremembered);
}

/* Returns where to go instead of the loopback address, or NULL. */
static __always_inline const struct address *redirect(struct bpf_sock_addr *ctx, __u8 ip_version,
						      const struct address *named)
{
	struct node_port key = {
		.ip_version = ip_version,
		.protocol = ctx->protocol,
		.port = bpf_ntohs(ctx->user_port),
	};
	const struct address *node = bpf_map_lookup_elem(&node_ports, &key);

	if (!node || bpf_get_netns_cookie(ctx) != netns_cookie)
		return 0;
	if (is_bound(ctx, ip_version)) {
		count(bound);
		return 0;
	}
	struct peer peer = peer_of(ctx, node);
	remember(&peer, named);
	return node;
}

static __always_inline bool redirect4(struct bpf_sock_addr *ctx)
{
	if (!is_loopback4(ctx->user_ip4))
		return false;
	struct address named = mapped(ctx->user_ip4);
	const struct address *node = redirect(ctx, 4, &named);
	if (!node)
		return false;
	set4(ctx, node);
	return true;
}

/* Returns the IP version that was redirected, or 0. */
static __always_inline __u8 redirect6(struct bpf_sock_addr *ctx)
{
	__u32 words[4] = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] };
	__u8 ip_version = 6;

	if (is_mapped(words) && is_loopback4(words[3]))
		ip_version = 4;
	else if (!is_loopback6(words))
		return 0;
	struct address named = address_of(words);
	const struct address *node = redirect(ctx, ip_version, &named);
	if (!node)
		return 0;
	set6(ctx, node);
	return ip_version;
}

static __always_inline const struct address *recall(struct bpf_sock_addr *ctx, const struct address *node)
{
	struct peer peer = peer_of(ctx, node);

	return bpf_map_lookup_elem(&redirected, &peer);
}

static __always_inline void restore4(struct bpf_sock_addr *ctx)
{
	struct address node = mapped(ctx->user_ip4);
	const struct address *named = recall(ctx, &node);

	if (named)
		set4(ctx, named);
}

static __always_inline void restore6(struct bpf_sock_addr *ctx)
{
	__u32 words[4] = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] };
	struct address node = address_of(words);
	const struct address *named = recall(ctx, &node);

	if (named)
		set6(ctx, named);
}

static __always_inline void count_connect(const struct bpf_sock_addr *ctx, __u8 ip_version)
{
	if (ctx->protocol == IPPROTO_TCP) {
		if (ip_version == 4)
			count(ipv4_tcp_connects);
		else
			count(ipv6_tcp_connects);
	} else {
		if (ip_version == 4)
			count(ipv4_udp_connects);
		else
			count(ipv6_udp_connects);
	}
}

/* All programs return 1: the call goes on. */

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	if (redirect4(ctx))
		count_connect(ctx, 4);
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	__u8 ip_version = redirect6(ctx);

	if (ip_version)
		count_connect(ctx, ip_version);
	return 1;
}

/*
 * An IPv6 socket that sends to a mapped address comes here, too. A datagram can have a
 * source of its own, beside that of its socket.
 */
SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	if (!is_loopback4(ctx->msg_src_ip4) && redirect4(ctx))
		count(ipv4_udp_sends);
	return 1;
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	__u32 source[4] = { ctx->msg_src_ip6[0], ctx->msg_src_ip6[1], ctx->msg_src_ip6[2], ctx->msg_src_ip6[3] };

	if (!is_loopback6(source) && redirect6(ctx))
		count(ipv6_udp_sends);
	return 1;
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	restore4(ctx);
	return 1;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	restore6(ctx);
	return 1;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	restore4(ctx);
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	restore6(ctx);
	return 1;
}

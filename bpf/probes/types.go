// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"net/netip"
	"time"
)

// Key names the counter of an endpoint of a frontend.
type Key struct {
	// VIP is the destination that the client wrote.
	VIP netip.AddrPort
	// Protocol is a number of IANA's: 6 TCP, 17 UDP, 132 SCTP.
	Protocol uint8
	// Endpoint is what became of it. It equals VIP if nothing did.
	Endpoint netip.AddrPort
}

// Selection is a counter.
type Selection struct {
	Key
	// Drawn counts new connections whose endpoint was drawn, Pinned those that
	// session affinity sent where the client's last connection went.
	Drawn, Pinned uint64
	// First and Last are when it was counted for the first and the last time.
	First, Last time.Time
}

// Histogram counts durations: Counts[0] those below 64 ns, Counts[i] those from
// 32<<i ns to below 64<<i ns, the last all that are longer.
type Histogram struct {
	Counts [histogramBuckets]uint64
	Sum    time.Duration
}

const histogramBuckets = len(probesHistogram{}.Counts)

// Hook is a netfilter hook that translates destinations.
type Hook uint8

// The hooks, as in maps.h.
const (
	Prerouting Hook = iota
	Output
)

// String returns nft's name of the hook.
func (h Hook) String() string { return [...]string{"prerouting", "output"}[h] }

// Outcome is what the NAT hook made of a first packet.
type Outcome uint8

// The outcomes, as in maps.h.
const (
	// Translated by a frontend that SetFrontends has named.
	Translated Outcome = iota
	// Missed: not translated.
	Missed
	// Foreign: translated by something else.
	Foreign
)

// Latency is how long the NAT hook took for first packets of TCP, UDP and SCTP.
type Latency struct {
	// Family is 4 or 6.
	Family  uint8
	Hook    Hook
	Outcome Outcome
	Histogram
}

// Losses count what is missing in the selections and latencies.
type Losses struct {
	// Full counts connections for whose counter there was no room.
	Full uint64
	// Unmatched counts first packets that were counted but not timed: another
	// packet came to the same hook of the same CPU in between, or the thread that
	// sent it moved to another CPU.
	Unmatched uint64
	// Retransmitted counts copies of a SYN that got lost on this node after its
	// destination was translated. They are not counted again.
	Retransmitted uint64
}

// Frontend is what connections are counted for.
type Frontend struct {
	// Addr is not valid for a NodePort, which is served on any address.
	Addr     netip.Addr
	Port     uint16
	Protocol uint8
	// Family is 4 or 6, that of Addr if it is valid.
	Family uint8
}

// Affinity is how a frontend keeps clients at their endpoint.
type Affinity struct {
	// Service is the same for all frontends that a client is kept by together.
	Service uint32
	// Seconds is 0 where clients are not kept.
	Seconds uint32
}

// Mode is how the programs are attached.
type Mode string

// The modes.
const (
	// Netfilter: two BPF netfilter programs around each hook that translates
	// destinations. They are called with every packet of the network namespace.
	Netfilter Mode = "netfilter"
	// Fentry: tracing programs at the start and the end of the function that
	// translates, nf_nat_inet_fn, for kernels before Linux 6.4. They are called
	// with every packet of all network namespaces and look at those of one.
	Fentry Mode = "fentry"
)

// Status says where the programs are.
type Status struct {
	Mode Mode
	// Reason is why the mode is not Netfilter, in words for an operator.
	Reason string
	// Hooks are where the programs of Netfilter are.
	Hooks []HookStatus
	// PinPath is empty if nothing is pinned.
	PinPath string
	// Capacity is how many counters of selections there can be in each family.
	Capacity int
}

// HookStatus is one pair of netfilter programs.
type HookStatus struct {
	// Family is 4 or 6.
	Family uint8
	Hook   Hook
	// Before and After are netfilter priorities. Destinations are translated at
	// -100.
	Before, After int32
}

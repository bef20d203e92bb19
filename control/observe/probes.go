// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"math/bits"
	"net/netip"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Probes count and time in the kernel. SetFrontends is called by the goroutine that
// programs Services, all else by another, one call at a time.
type Probes interface {
	// Status says what the probes are; it does not change.
	Status() ProbeStatus
	// SetFrontends tells the probes which connections are for Services. Others
	// that are translated count as foreign. An unknown one in removed is no error.
	SetFrontends(changed []Frontend, removed []FrontendID) error
	// Read returns all counters.
	Read() (Reading, error)
	// Forget removes counters of endpoints that have left. Unknown ones are no
	// error.
	Forget(keys []SelectionKey) error
}

// Mode is how the probes are attached.
type Mode string

// The modes.
const (
	// Netfilter: BPF netfilter programs around the NAT hooks (Linux 6.4).
	Netfilter Mode = "netfilter"
	// Fentry: tracing programs on the function that translates, for older kernels.
	Fentry Mode = "fentry"
	// Off: nothing is observed.
	Off Mode = "off"
)

// ProbeStatus says what the probes are.
type ProbeStatus struct {
	Mode Mode `json:"mode"`
	// Reason is why the mode is Off, or is not Netfilter. In words for an operator.
	Reason string `json:"reason,omitempty"`
	// Hooks are where programs are attached in mode Netfilter.
	Hooks []ProbeHook `json:"hooks,omitempty"`
	// PinPath is the directory of the pinned maps, empty if nothing is pinned.
	PinPath string `json:"pinPath,omitempty"`
	// Capacity is how many counters of selections there can be.
	Capacity int `json:"capacity,omitempty"`
}

// ProbeHook is where one pair of programs is attached.
type ProbeHook struct {
	Family dataplane.Family `json:"family"`
	Hook   Hook             `json:"hook"`
	// Before and After are the netfilter priorities of the two programs.
	Before int32 `json:"before"`
	After  int32 `json:"after"`
}

// Hook is a netfilter hook that translates destinations.
type Hook string

// The hooks.
const (
	Prerouting Hook = "prerouting"
	Output     Hook = "output"
)

// Outcome is what the NAT hook made of a new connection.
type Outcome string

// The outcomes.
const (
	// Translated: to an endpoint, by a frontend of ours.
	Translated Outcome = "translated"
	// Missed: not translated, whether it should have been or not.
	Missed Outcome = "missed"
	// Foreign: translated, but not to a frontend of ours.
	Foreign Outcome = "foreign"
)

// FrontendID names what clients connect to.
type FrontendID struct {
	// VIP is a NodePort if it has no address.
	VIP dataplane.VIP
	// Family is that of the connections; a VIP that is a NodePort does not say it.
	Family dataplane.Family
}

// Frontend is what clients connect to.
type Frontend struct {
	FrontendID
	// AffinitySeconds is 0 where clients are not kept at their endpoint.
	AffinitySeconds uint32
	// Service is the same for all frontends that a client is kept by together, and
	// for the same Service after a restart. Two Services may have the same by
	// chance, one in four billion.
	Service uint32
}

// SelectionKey names a counter.
type SelectionKey struct {
	// VIP is the destination that the client wrote. For a NodePort it has the
	// node's address.
	VIP dataplane.VIP
	// Endpoint is the chosen one. It equals the VIP's address and port where a
	// frontend of ours was not translated: a miss.
	Endpoint netip.AddrPort
}

// Selection is a counter. It starts at 0 when the key is first seen, and again after
// Forget.
type Selection struct {
	SelectionKey
	// Drawn counts connections whose endpoint was drawn, Pinned those whose
	// endpoint was that of the client's last connection, within the time of
	// session affinity. Their sum is the number of new connections.
	Drawn, Pinned uint64
	// First and Last are when it was selected for the first and the last time.
	First, Last time.Time
}

// Histogram counts durations by powers of two.
type Histogram struct {
	// Counts[0] has those below 64 ns, Counts[i] those from 32<<i to below
	// 64<<i ns; the last has all that are longer.
	Counts [HistogramBuckets]uint64 `json:"counts"`
	// Sum is that of all durations.
	Sum time.Duration `json:"sumNanoseconds"`
}

// HistogramBuckets is how many buckets a Histogram has: the last starts at 1.07 s.
const HistogramBuckets = 26

// Latency is how long the NAT hook took for the first packets of connections.
type Latency struct {
	Family  dataplane.Family `json:"family"`
	Hook    Hook             `json:"hook"`
	Outcome Outcome          `json:"outcome"`
	Histogram
}

// Reading is all that the probes know.
type Reading struct {
	At         time.Time
	Selections []Selection
	Latencies  []Latency
	Losses     Losses
}

// Losses count what the probes did not count as a selection, or could not.
type Losses struct {
	// Full counts connections that found no room for their counter.
	Full uint64 `json:"full"`
	// Unmatched counts first packets that could not be timed, as another packet
	// came between the two programs. They are counted as selections.
	Unmatched uint64 `json:"unmatched"`
	// Retransmitted counts first packets that were translated again since an
	// earlier copy did not get through. They are not counted as selections.
	Retransmitted uint64 `json:"retransmitted"`
	// Clashed counts connections that conntrack dropped or merged since another
	// CPU confirmed the same one first. They are counted as selections.
	Clashed uint64 `json:"clashed"`
}

// Add counts a duration.
func (h *Histogram) Add(d time.Duration) {
	bucket := max(bits.Len64(uint64(max(d, 0)))-6, 0)
	h.Counts[min(bucket, HistogramBuckets-1)]++
	h.Sum += d
}

// Total is the number of durations.
func (h *Histogram) Total() uint64 {
	var sum uint64
	for _, n := range h.Counts {
		sum += n
	}
	return sum
}

// Quantile returns the duration that a share q of all is below, within [0, 1]. Within a
// bucket durations are taken to be spread evenly over its logarithm, so the result is
// off by less than a factor of two, and by less than 1.5 as a rule. It is 0 for an
// empty histogram, and the lower end of the last bucket where it lies there.
func (h *Histogram) Quantile(q float64) time.Duration {
	total := h.Total()
	if total == 0 {
		return 0
	}
	rank := q * float64(total)
	below := 0.0
	for i, n := range h.Counts {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		low := float64(uint64(32) << i)
		if i == HistogramBuckets-1 {
			return time.Duration(low)
		}
		return time.Duration(low * math.Pow(2, (rank-below)/float64(n)))
	}
	return 0
}

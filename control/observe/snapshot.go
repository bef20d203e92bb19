// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Snapshot is what was known at a moment. Nothing in it is ever changed.
type Snapshot struct {
	// At is when the counters were read, zero if they never were.
	At     time.Time
	Probes ProbeStatus
	// ReadError is why the last attempt to read failed; the rest is then from the
	// last that did not. Empty if it succeeded.
	ReadError string
	// Services are all that are programmed, sorted by key.
	Services []*Service
	// Alarms are what is wrong now, sorted.
	Alarms    []Alarm
	Latencies []Latency
	Losses    Losses
	// Programming is the network programming latency as traffic sees it: from when
	// the change was seen to the first selection of a new endpoint, for endpoints
	// that came while the Service had traffic.
	Programming Histogram
	// Selections and Foreign are totals since the counters exist.
	Selections, Foreign uint64
}

// Service is a ServicePort with what was counted for it.
type Service struct {
	Key             dataplane.ServicePortKey
	VIPs            []dataplane.VIP
	Algorithm       dataplane.Algorithm
	AffinitySeconds uint32
	// Drawn, Pinned and Missed are totals of all frontends, endpoints that have
	// left included, since the probes were first attached or, for what had left by
	// then, since this process started.
	Drawn, Pinned, Missed uint64
	// Pools are the sets of endpoints that its frontends draw from: one, or two
	// where traffic policy Local applies to some frontends.
	Pools []Pool
}

// Selections is the number of connections that came to an endpoint.
func (s *Service) Selections() uint64 { return s.Drawn + s.Pinned }

// Pool is a set of endpoints that is drawn from.
type Pool struct {
	// Local says that these are the endpoints of traffic policy Local.
	Local bool
	// Since is when the set became what it is: a new one starts a new epoch, and
	// counts for the verdict start anew.
	Since     time.Time
	Endpoints []Endpoint
	Evenness  Evenness
}

// Endpoint is one of a pool.
type Endpoint struct {
	Addr netip.AddrPort
	// Local says that it is on this node.
	Local bool
	// Buckets is how many of the pool's buckets lead to it; Share is their part.
	Buckets int
	Share   float64
	// Drawn counts the draws of this epoch.
	Drawn uint64
	// Drawn and pinned connections since the counter exists, all frontends.
	Total uint64
	// First and Last are when it was selected for the first and the last time,
	// zero if it never was.
	First, Last time.Time
}

// Evenness is the verdict about a pool.
type Evenness struct {
	// Untested is why there is no verdict, empty if there is one.
	Untested string
	// N is the number of draws of this epoch.
	N uint64
	// LogE is the natural logarithm of the evidence against evenness: an e-value
	// that may be looked at as often as one likes. 0 says nothing, above ln 10⁴ is
	// hardly chance.
	LogE float64
	// Rejected says that the Service is among those that are uneven, with the
	// rate of false ones bounded over all Services.
	Rejected bool
	// PValue is of a chi-square test of the counts. It holds for one look only.
	PValue float64
	// Detectable is the smallest relative deviation of one endpoint from its share
	// that N draws would have shown with a chance of 80 %; 0 if N is 0.
	Detectable float64
}

// Verdict is an Evenness in a word.
type Verdict string

// The verdicts, the worse ones later.
const (
	// Untested: Evenness.Untested says why.
	Untested Verdict = "untested"
	// TooFew: so few draws that even half of an endpoint's share could be missing.
	TooFew Verdict = "too few"
	// Even: no evidence against it, and enough draws to have found some.
	Even Verdict = "even"
	// NotEven: rejected.
	NotEven Verdict = "uneven"
)

// fewDraws is the Detectable above which there are too few draws to say anything.
const fewDraws = 0.5

// Verdict sums it up.
func (e *Evenness) Verdict() Verdict {
	switch {
	case e.Untested != "":
		return Untested
	case e.Rejected:
		return NotEven
	case e.N == 0 || e.Detectable > fewDraws:
		return TooFew
	default:
		return Even
	}
}

// Verdict is the worst of the pools.
func (s *Service) Verdict() Verdict {
	rank := []Verdict{Untested, TooFew, Even, NotEven}
	worst := Untested
	for i := range s.Pools {
		if v := s.Pools[i].Evenness.Verdict(); slices.Index(rank, v) > slices.Index(rank, worst) {
			worst = v
		}
	}
	return worst
}

// AlarmKind is what is wrong.
type AlarmKind string

// The kinds.
const (
	// UnknownEndpoint: a connection to a frontend of ours went to an endpoint that
	// is not in the desired state: a stale rule, or another proxy.
	UnknownEndpoint AlarmKind = "unknown-endpoint"
	// MissedService: connections to a Service with endpoints were not translated.
	MissedService AlarmKind = "missed-service"
	// NeverSelected: an endpoint was never selected, though chance alone would
	// hardly have left it out.
	NeverSelected AlarmKind = "never-selected"
	// Uneven: uniformity is rejected.
	Uneven AlarmKind = "uneven"
	// ProbesFull: connections were not counted as there is no room for more.
	ProbesFull AlarmKind = "probes-full"
)

// Alarm is one thing that is wrong.
type Alarm struct {
	Kind AlarmKind                `json:"kind"`
	Key  dataplane.ServicePortKey `json:"-"`
	// VIP and Endpoint are set where the kind is about one.
	VIP      dataplane.VIP  `json:"-"`
	Endpoint netip.AddrPort `json:"-"`
	// Since is when it was first seen.
	Since time.Time `json:"since"`
	// Count is how many connections it is about, 0 if that means nothing.
	Count uint64 `json:"count,omitempty"`
	// Text says it in words, with names and what to do.
	Text string `json:"text"`
}

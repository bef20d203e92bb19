// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/veridict/veridict/control/observe"
)

// Version is that of the documents.
const Version = "veridict.dev/v1"

// Head begins every document.
type Head struct {
	// APIVersion is [Version], Kind the name of the document's type.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// Status is how the agent is.
type Status struct {
	Head
	Agent     Agent     `json:"agent"`
	Dataplane Dataplane `json:"dataplane"`
	Probes    Probes    `json:"probes"`
	// Programming is from when a change was seen to the first selection of a new
	// endpoint.
	Programming Quantiles `json:"programming"`
	Alarms      []Alarm   `json:"alarms"`
}

// Agent is the process.
type Agent struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// Dataplane is what is programmed.
type Dataplane struct {
	Layout string `json:"layout"`
	// Healthy is false while a change waits longer than two sync periods.
	Healthy bool `json:"healthy"`
	// Synced says that the source was complete once.
	Synced bool `json:"synced"`
	// ServicePorts counts a port of a Service once for each IP family, Endpoints an
	// endpoint once for each of these.
	ServicePorts int `json:"servicePorts"`
	Endpoints    int `json:"endpoints"`
	Elements     int `json:"elements"`
	Chains       int `json:"chains"`
	Maps         int `json:"maps"`
	// LastSync is when the kernel was last programmed; it took LastSyncSeconds.
	LastSync        time.Time `json:"lastSync,omitzero"`
	LastSyncSeconds float64   `json:"lastSyncSeconds"`
	Syncs           int       `json:"syncs"`
	Failures        int       `json:"failures"`
	// LastError is that of the last attempt, empty if it succeeded.
	LastError string `json:"lastError,omitempty"`
	// Pending is since when a change has waited.
	Pending time.Time `json:"pending,omitzero"`
	// Problems is the number of things that are not served as written.
	Problems int `json:"problems"`
	// Outages are what cannot be read of the API server at the moment, in words.
	Outages []string `json:"outages,omitempty"`
}

// Probes is what observes the kernel.
type Probes struct {
	observe.ProbeStatus
	// ReadAt is when the counters were read, ReadError why they could not be since.
	ReadAt    time.Time `json:"readAt,omitzero"`
	ReadError string    `json:"readError,omitempty"`
	// Selections counts connections that came to an endpoint, Foreign those that
	// something else translated.
	Selections uint64         `json:"selections"`
	Foreign    uint64         `json:"foreign"`
	Losses     observe.Losses `json:"losses"`
}

// Alarm is one thing that is wrong.
type Alarm struct {
	Kind observe.AlarmKind `json:"kind"`
	// Service is "namespace/name:port", empty if the alarm is about none.
	Service string    `json:"service,omitempty"`
	Since   time.Time `json:"since"`
	Count   uint64    `json:"count,omitempty"`
	Text    string    `json:"text"`
}

// ServiceList is the Services, as asked for.
type ServiceList struct {
	Head
	// ReadAt is when the counters were read.
	ReadAt time.Time `json:"readAt,omitzero"`
	// Total is the number of those that match, of which Items may be the first.
	Total int       `json:"total"`
	Items []Service `json:"items"`
}

// Service is a port of a Service in one IP family.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Port is the name of the port, empty for an unnamed one.
	Port string `json:"port,omitempty"`
	// Protocol is tcp, udp or sctp, Family 4 or 6.
	Protocol string `json:"protocol"`
	Family   int    `json:"family"`
	// VIPs are address:port, "*" being every address of the node that takes
	// NodePorts.
	VIPs      []string `json:"vips"`
	Endpoints int      `json:"endpoints"`
	// Selections counts connections to an endpoint, Pinned those of them that
	// session affinity sent to the endpoint of before. Missed counts connections
	// that were not translated.
	Selections uint64          `json:"selections"`
	Pinned     uint64          `json:"pinned"`
	Missed     uint64          `json:"missed"`
	Verdict    observe.Verdict `json:"verdict"`
	// LogE is the natural logarithm of the evidence against evenness, the largest
	// of the pools.
	LogE float64 `json:"logE"`
	// Pools is given for single Services only.
	Pools []Pool `json:"pools,omitempty"`
	// Algorithm is random or source-hash, AffinitySeconds 0 without affinity.
	Algorithm       string `json:"algorithm"`
	AffinitySeconds uint32 `json:"affinitySeconds"`
}

// ID is "namespace/name:port".
func (s *Service) ID() string {
	id := s.Namespace + "/" + s.Name
	if s.Port != "" {
		id += ":" + s.Port
	}
	return id
}

// Pool is a set of endpoints that connections draw from.
type Pool struct {
	// Local says that it is that of traffic policy Local.
	Local bool `json:"local"`
	// Since is when the set became what it is. Draws are counted from then on.
	Since     time.Time  `json:"since,omitzero"`
	Verdict   Evenness   `json:"verdict"`
	Endpoints []Endpoint `json:"endpoints"`
}

// Evenness is a verdict and what it is made of.
type Evenness struct {
	Verdict observe.Verdict `json:"verdict"`
	// Untested is why there is none.
	Untested string `json:"untested,omitempty"`
	Draws    uint64 `json:"draws"`
	// LogE is the natural logarithm of the evidence against evenness. It may be
	// looked at as often as one likes.
	LogE float64 `json:"logE"`
	// PValue is that of a chi-square test; it holds for one look.
	PValue float64 `json:"pValue"`
	// Detectable is the relative deviation of one endpoint that so many draws would
	// have shown four times out of five; 0 without draws.
	Detectable float64 `json:"detectable"`
}

// Endpoint is one of a pool.
type Endpoint struct {
	Address string `json:"address"`
	// Local says that it is on this node.
	Local bool `json:"local"`
	// Buckets is the number of buckets that lead to it, Share their part of all.
	Buckets int     `json:"buckets"`
	Share   float64 `json:"share"`
	// Drawn counts draws since Pool.Since, Total all connections.
	Drawn uint64    `json:"drawn"`
	Total uint64    `json:"total"`
	Last  time.Time `json:"last,omitzero"`
}

// LatencyList is how long the translation of first packets took.
type LatencyList struct {
	Head
	ReadAt time.Time `json:"readAt,omitzero"`
	Items  []Latency `json:"items"`
}

// Latency is a histogram.
type Latency struct {
	Family  int             `json:"family"`
	Hook    observe.Hook    `json:"hook"`
	Outcome observe.Outcome `json:"outcome"`
	Quantiles
	// Counts[0] has those below 64 ns, Counts[i] those from 32<<i ns to below 64<<i.
	Counts []uint64 `json:"counts"`
}

// Quantiles sum up a histogram. They are estimates from buckets a factor of two wide.
type Quantiles struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"meanSeconds"`
	P50   float64 `json:"p50Seconds"`
	P90   float64 `json:"p90Seconds"`
	P99   float64 `json:"p99Seconds"`
}

// Failure is the body of an answer that is no document.
type Failure struct {
	Error string `json:"error"`
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/veridict/veridict/bpf/uniformity"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// Report is what a run of the demo found.
type Report struct {
	// Clients and Pods count namespaces; pods include the clients.
	Clients, Pods int
	// Programmed is what the proxy says that it holds.
	Programmed dataplane.Counts
	// Connections are those of the measurement, for which no endpoint
	// changed. Failed counts failures among them and those of Scaling.
	Connections, Failed int
	// Probes are what observed the kernel, or why nothing did.
	Probes observe.ProbeStatus
	// Failures counts the failed connections by Service and reason.
	Failures []Failure
	// Elapsed is how long the measurement took.
	Elapsed time.Duration
	// Services has the ServicePorts that have endpoints.
	Services []ServiceResult
	// Refusals has the ServicePorts that have none.
	Refusals []Refusal
	// Scaled names the Service of Scaling.
	Scaled  string
	Scaling []ScaleStep
	// ScalingCounts are those of Scaling, of all ServicePorts together.
	ScalingCounts Counts
	// Differences are where counts do not agree, though all should.
	Differences []Difference
	// Latencies are how long the kernel took for the first packets of connections
	// to ServicePorts, those of Scaling included.
	Latencies []observe.Latency
	// Alarms are what the proxy says is wrong, at the end.
	Alarms []observe.Alarm
}

// observed says whether the kernel was.
func (r *Report) observed() bool { return r.Probes.Mode != observe.Off }

// ServiceResult is how connections to one ServicePort have spread.
type ServiceResult struct {
	Namespace, Name, PortName string
	VIP                       dataplane.VIP
	// Test is that of what clients were answered, which needs no probes.
	Test      uniformity.Result
	Endpoints []EndpointResult
	Counts    Counts
	// Evenness is the proxy's verdict about what the kernel has drawn; nil if that
	// was not observed.
	Evenness *observe.Evenness
}

// EndpointResult is one endpoint's part of a [ServiceResult].
type EndpointResult struct {
	Addr netip.AddrPort
	// Connections are those that clients had answers of.
	Connections int
	// Answered is the endpoint's own count, Selected the kernel's.
	Answered, Selected int
	// Expected is the number of connections at equal shares.
	Expected float64
}

// Failure counts failed connections of one kind.
type Failure struct {
	Service, Reason string
	Count           int
}

// Refusal says what happened to a connection to a Service without endpoints.
type Refusal struct {
	Service string
	VIP     dataplane.VIP
	// Outcome is "refused" if all is well.
	Outcome string
}

// ScaleStep is one change of the number of endpoints.
type ScaleStep struct {
	From, To            int
	Connections, Failed int
	// Followed is the time from the change of the manifest to the connection
	// that proved that clients see it.
	Followed time.Duration
}

// refused is the outcome that a Service without endpoints must have.
const refused = "refused"

// Err returns an error if something failed that must not: a connection, the refusal
// of one to a Service without endpoints, or the agreement of those who counted.
func (r *Report) Err() error {
	if r.Failed > 0 {
		return fmt.Errorf("failed connections: %d", r.Failed)
	}
	for _, refusal := range r.Refusals {
		if refusal.Outcome != refused {
			return fmt.Errorf("%s has no endpoints, but a connection to it was not refused: %s", refusal.Service, refusal.Outcome)
		}
	}
	if n := len(r.Differences); n > 0 {
		return fmt.Errorf("counts that do not agree: %d, first those of %s", n, r.Differences[0])
	}
	return nil
}

// addFailures counts failures together that differ in nothing but the phase.
func (r *Report) addFailures(service, reason string, count int) {
	r.Failed += count
	for i, failure := range r.Failures {
		if failure.Service == service && failure.Reason == reason {
			r.Failures[i].Count += count
			return
		}
	}
	r.Failures = append(r.Failures, Failure{service, reason, count})
}

// scalingConnections counts the connections opened during [Report.Scaling].
func (r *Report) scalingConnections() int {
	total := 0
	for _, step := range r.Scaling {
		total += step.Connections
	}
	return total
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/veridict/veridict/bpf/uniformity"
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
}

// ServiceResult is how connections to one ServicePort have spread.
type ServiceResult struct {
	Namespace, Name, PortName string
	VIP                       dataplane.VIP
	Test                      uniformity.Result
	Endpoints                 []EndpointResult
}

// EndpointResult is one endpoint's part of a [ServiceResult].
type EndpointResult struct {
	Addr        netip.AddrPort
	Connections int
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

// Err returns an error if something failed that must not: a connection, or the
// refusal of one to a Service without endpoints.
func (r *Report) Err() error {
	if r.Failed > 0 {
		return fmt.Errorf("failed connections: %d", r.Failed)
	}
	for _, refusal := range r.Refusals {
		if refusal.Outcome != refused {
			return fmt.Errorf("%s has no endpoints, but a connection to it was not refused: %s", refusal.Service, refusal.Outcome)
		}
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

// The JSON form is a contract with programs.
type (
	jsonReport struct {
		Connections int           `json:"connections"`
		Failed      int           `json:"failed"`
		Chains      int           `json:"chains"`
		Maps        int           `json:"maps"`
		Elements    int           `json:"elements"`
		Services    []jsonService `json:"services"`
	}
	jsonService struct {
		Namespace string         `json:"namespace"`
		Name      string         `json:"name"`
		Port      uint16         `json:"port"`
		Protocol  string         `json:"protocol"`
		PValue    float64        `json:"pValue"`
		Endpoints []jsonEndpoint `json:"endpoints"`
	}
	jsonEndpoint struct {
		Address     string  `json:"address"`
		Port        uint16  `json:"port"`
		Connections int     `json:"connections"`
		Expected    float64 `json:"expected"`
	}
)

// WriteJSON writes the report as one JSON object. The connections of its
// services' endpoints, plus those that failed, add up to connections.
func (r *Report) WriteJSON(w io.Writer) error {
	out := jsonReport{
		Connections: r.Connections,
		Failed:      r.Failed,
		Chains:      r.Programmed.Chains,
		Maps:        r.Programmed.Maps,
		Elements:    r.Programmed.Elements,
		Services:    []jsonService{},
	}
	for _, service := range r.Services {
		endpoints := make([]jsonEndpoint, 0, len(service.Endpoints))
		for _, endpoint := range service.Endpoints {
			endpoints = append(endpoints, jsonEndpoint{
				Address:     endpoint.Addr.Addr().String(),
				Port:        endpoint.Addr.Port(),
				Connections: endpoint.Connections,
				Expected:    endpoint.Expected,
			})
		}
		out.Services = append(out.Services, jsonService{
			Namespace: service.Namespace,
			Name:      service.Name,
			Port:      service.VIP.Port,
			Protocol:  protocolName(service.VIP.Protocol),
			PValue:    service.Test.PValue,
			Endpoints: endpoints,
		})
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// protocolName returns the name that the Kubernetes API uses.
func protocolName(protocol dataplane.Protocol) string {
	switch protocol {
	case dataplane.TCP:
		return "TCP"
	case dataplane.UDP:
		return "UDP"
	case dataplane.SCTP:
		return "SCTP"
	default:
		return protocol.String()
	}
}

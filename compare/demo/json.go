// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// The JSON form is a contract with programs.
type (
	jsonReport struct {
		Connections int           `json:"connections"`
		Failed      int           `json:"failed"`
		Chains      int           `json:"chains"`
		Maps        int           `json:"maps"`
		Elements    int           `json:"elements"`
		Services    []jsonService `json:"services"`
		// Scaling counts connections while endpoints came and went.
		Scaling jsonCounts `json:"scaling"`
		// Kernel is how it was observed: mode "off" comes with a reason, and then
		// nothing is said to be selected.
		Kernel    jsonKernel    `json:"kernel"`
		Latencies []jsonLatency `json:"latencies"`
		Alarms    []string      `json:"alarms"`
	}
	jsonCounts struct {
		Opened   int  `json:"opened"`
		Answered int  `json:"answered"`
		Selected *int `json:"selected,omitempty"`
	}
	jsonKernel struct {
		Mode   observe.Mode `json:"mode"`
		Reason string       `json:"reason,omitempty"`
	}
	jsonLatency struct {
		Family      int          `json:"family"`
		Hook        observe.Hook `json:"hook"`
		Connections uint64       `json:"connections"`
		P50         float64      `json:"p50Seconds"`
		P90         float64      `json:"p90Seconds"`
		P99         float64      `json:"p99Seconds"`
	}
	jsonService struct {
		Namespace string         `json:"namespace"`
		Name      string         `json:"name"`
		Port      uint16         `json:"port"`
		Protocol  string         `json:"protocol"`
		PValue    float64        `json:"pValue"`
		Endpoints []jsonEndpoint `json:"endpoints"`
		jsonCounts
		// Verdict is on what the kernel has selected; DetectableEffect is the least
		// deviation of an endpoint from its share, relative to that, that it would
		// have noticed with a chance of 80 %.
		Verdict          observe.Verdict `json:"verdict,omitempty"`
		DetectableEffect float64         `json:"detectableEffect,omitempty"`
	}
	jsonEndpoint struct {
		Address     string  `json:"address"`
		Port        uint16  `json:"port"`
		Connections int     `json:"connections"`
		Expected    float64 `json:"expected"`
		Answered    int     `json:"answered"`
		Selected    *int    `json:"selected,omitempty"`
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
		Scaling:     r.jsonCounts(r.ScalingCounts),
		Kernel:      jsonKernel{Mode: r.Probes.Mode, Reason: r.Probes.Reason},
		Latencies:   []jsonLatency{},
		Alarms:      []string{},
	}
	for i := range r.Services {
		out.Services = append(out.Services, r.jsonService(&r.Services[i]))
	}
	for i := range r.Latencies {
		l := &r.Latencies[i]
		out.Latencies = append(out.Latencies, jsonLatency{
			Family: int(l.Family), Hook: l.Hook, Connections: l.Total(),
			P50: l.Quantile(0.5).Seconds(), P90: l.Quantile(0.9).Seconds(), P99: l.Quantile(0.99).Seconds(),
		})
	}
	for i := range r.Alarms {
		out.Alarms = append(out.Alarms, r.Alarms[i].Text)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) jsonService(service *ServiceResult) jsonService {
	out := jsonService{
		Namespace:  service.Namespace,
		Name:       service.Name,
		Port:       service.VIP.Port,
		Protocol:   protocolName(service.VIP.Protocol),
		PValue:     service.Test.PValue,
		Endpoints:  []jsonEndpoint{},
		jsonCounts: r.jsonCounts(service.Counts),
	}
	if e := service.Evenness; e != nil {
		out.Verdict, out.DetectableEffect = e.Verdict(), e.Detectable
	}
	for _, endpoint := range service.Endpoints {
		out.Endpoints = append(out.Endpoints, jsonEndpoint{
			Address:     endpoint.Addr.Addr().String(),
			Port:        endpoint.Addr.Port(),
			Connections: endpoint.Connections,
			Expected:    endpoint.Expected,
			Answered:    endpoint.Answered,
			Selected:    r.ifObserved(endpoint.Selected),
		})
	}
	return out
}

func (r *Report) jsonCounts(c Counts) jsonCounts {
	return jsonCounts{Opened: c.Opened, Answered: c.Answered, Selected: r.ifObserved(c.Selected)}
}

// ifObserved leaves counts of the kernel out that nobody has taken.
func (r *Report) ifObserved(n int) *int {
	if !r.observed() {
		return nil
	}
	return &n
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

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

func head(kind string) Head { return Head{APIVersion: Version, Kind: kind} }

// query says which Services are asked for, and in which order.
type query struct {
	namespace, name string
	sort            string
	limit           int
	pools           bool
}

// The orders of Services.
const (
	// ByName is by namespace, name, port, protocol and family.
	ByName = "name"
	// BySelections has the most selected first.
	BySelections = "selections"
	// ByEvidence has those first that are the least even.
	ByEvidence = "evidence"
)

func orders() []string { return []string{ByName, BySelections, ByEvidence} }

func (q *query) list(s *observe.Snapshot) *ServiceList {
	chosen := slices.DeleteFunc(slices.Clone(s.Services), func(service *observe.Service) bool {
		return q.namespace != "" && service.Key.Namespace != q.namespace || q.name != "" && service.Key.Name != q.name
	})
	// They come sorted by name, and a stable order keeps that among equals.
	switch q.sort {
	case BySelections:
		slices.SortStableFunc(chosen, func(a, b *observe.Service) int { return cmp.Compare(b.Selections(), a.Selections()) })
	case ByEvidence:
		slices.SortStableFunc(chosen, func(a, b *observe.Service) int { return cmp.Compare(logE(b), logE(a)) })
	}
	out := &ServiceList{Head: head("ServiceList"), ReadAt: s.At, Total: len(chosen)}
	if q.limit > 0 && q.limit < len(chosen) {
		chosen = chosen[:q.limit]
	}
	out.Items = make([]Service, len(chosen))
	for i, service := range chosen {
		out.Items[i] = serviceOf(service, q.pools)
	}
	return out
}

// logE is the largest of the pools that are tested, 0 if there is none.
func logE(s *observe.Service) float64 {
	largest := math.Inf(-1)
	for i := range s.Pools {
		if e := &s.Pools[i].Evenness; e.Untested == "" {
			largest = max(largest, e.LogE)
		}
	}
	if math.IsInf(largest, -1) {
		return 0
	}
	return largest
}

func serviceOf(s *observe.Service, pools bool) Service {
	out := Service{
		Namespace: s.Key.Namespace, Name: s.Key.Name, Port: s.Key.Port, Protocol: s.Key.Protocol.String(),
		Family: int(s.Key.Family), VIPs: make([]string, len(s.VIPs)), Selections: s.Selections(), Pinned: s.Pinned,
		Missed: s.Missed, Verdict: s.Verdict(), LogE: logE(s), Algorithm: algorithm(s.Algorithm),
		AffinitySeconds: s.AffinitySeconds,
	}
	for i, vip := range s.VIPs {
		out.VIPs[i] = address(vip)
	}
	if len(s.Pools) > 0 {
		out.Endpoints = len(s.Pools[0].Endpoints)
	}
	if !pools {
		return out
	}
	for i := range s.Pools {
		out.Pools = append(out.Pools, poolOf(&s.Pools[i]))
	}
	return out
}

// address is a VIP without its protocol.
func address(vip dataplane.VIP) string {
	if vip.IsNodePort() {
		return fmt.Sprintf("*:%d", vip.Port)
	}
	return netip.AddrPortFrom(vip.Addr, vip.Port).String()
}

func algorithm(a dataplane.Algorithm) string {
	if a == dataplane.SourceHash {
		return "source-hash"
	}
	return "random"
}

func poolOf(p *observe.Pool) Pool {
	e := &p.Evenness
	out := Pool{
		Local: p.Local, Since: p.Since, Endpoints: make([]Endpoint, len(p.Endpoints)),
		Verdict: Evenness{
			Verdict: e.Verdict(), Untested: e.Untested, Draws: e.N, LogE: e.LogE, PValue: e.PValue, Detectable: e.Detectable,
		},
	}
	for i, ep := range p.Endpoints {
		out.Endpoints[i] = Endpoint{
			Address: ep.Addr.String(), Local: ep.Local, Buckets: ep.Buckets, Share: ep.Share,
			Drawn: ep.Drawn, Total: ep.Total, Last: ep.Last,
		}
	}
	return out
}

func latencies(s *observe.Snapshot) *LatencyList {
	out := &LatencyList{Head: head("LatencyList"), ReadAt: s.At, Items: make([]Latency, len(s.Latencies))}
	for i := range s.Latencies {
		l := &s.Latencies[i]
		out.Items[i] = Latency{
			Family: int(l.Family), Hook: l.Hook, Outcome: l.Outcome, Quantiles: quantiles(&l.Histogram), Counts: l.Counts[:],
		}
	}
	slices.SortFunc(out.Items, func(a, b Latency) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), -cmp.Compare(a.Hook, b.Hook), -cmp.Compare(a.Outcome, b.Outcome))
	})
	return out
}

func quantiles(h *observe.Histogram) Quantiles {
	total := h.Total()
	if total == 0 {
		return Quantiles{}
	}
	return Quantiles{
		Count: total, Mean: h.Sum.Seconds() / float64(total),
		P50: h.Quantile(0.5).Seconds(), P90: h.Quantile(0.9).Seconds(), P99: h.Quantile(0.99).Seconds(),
	}
}

func alarms(s *observe.Snapshot) []Alarm {
	out := make([]Alarm, len(s.Alarms))
	for i, a := range s.Alarms {
		out[i] = Alarm{Kind: a.Kind, Since: a.Since.Truncate(time.Millisecond), Count: a.Count, Text: a.Text}
		if a.Key != (dataplane.ServicePortKey{}) {
			out[i].Service = a.Key.ServicePortName.String()
		}
	}
	return out
}

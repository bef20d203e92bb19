// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// Counts are connections as three parties counted them, independently.
type Counts struct {
	// Opened is the clients' count, connections that failed included.
	Opened int
	// Answered is the endpoints' count.
	Answered int
	// Selected is how often the kernel chose an endpoint; 0 where it is not observed.
	Selected int
}

// plus adds each count.
func (c Counts) plus(o Counts) Counts {
	return Counts{c.Opened + o.Opened, c.Answered + o.Answered, c.Selected + o.Selected}
}

// agree says whether all that counted have the same.
func (c Counts) agree(observed bool) bool {
	return c.Opened == c.Answered && (!observed || c.Answered == c.Selected)
}

// Difference is where the counts do not agree.
type Difference struct {
	// Of names a ServicePort, or one of its endpoints: for that, what clients have
	// opened is what they have had answers of.
	Of string
	Counts
	// Observed says that the kernel has counted, too.
	Observed bool
}

// String names it and the counts.
func (d Difference) String() string {
	text := fmt.Sprintf("%s: opened %s, answered %s", d.Of, thousands(d.Opened), thousands(d.Answered))
	if d.Observed {
		text += ", selected " + thousands(d.Selected)
	}
	return text
}

// census is what endpoints and the kernel have counted up to a moment.
type census struct {
	answered map[listener]int
	kernel   *observe.Snapshot
}

// takeCensus reads all counters now. No connection may be under way.
func (r *run) takeCensus() (*census, error) {
	kernel := r.proxy.Observed()
	if kernel.ReadError != "" {
		return nil, fmt.Errorf("read what the kernel has counted: %s", kernel.ReadError)
	}
	c := &census{answered: make(map[listener]int, len(r.cluster.servers)), kernel: kernel}
	for at, server := range r.cluster.servers {
		c.answered[at] = server.Answered()
	}
	return c, nil
}

// observed says whether the kernel is.
func (c *census) observed() bool { return c.kernel.Probes.Mode != observe.Off }

// service returns what was observed of a ServicePort, which is nothing if it is not
// known.
func (c *census) service(vip dataplane.VIP) *observe.Service {
	for _, service := range c.kernel.Services {
		if slices.Contains(service.VIPs, vip) {
			return service
		}
	}
	return new(observe.Service)
}

// of returns what a ServicePort and these endpoints of it have counted.
func (c *census) of(vip dataplane.VIP, endpoints []netip.AddrPort) Counts {
	counts := Counts{Selected: int(c.service(vip).Selections())}
	for _, addr := range endpoints {
		counts.Answered += c.answered[listener{vip.Protocol, addr}]
	}
	return counts
}

// ofEndpoint returns what one endpoint of a ServicePort has counted.
func (c *census) ofEndpoint(vip dataplane.VIP, addr netip.AddrPort) Counts {
	counts := Counts{Answered: c.answered[listener{vip.Protocol, addr}]}
	for _, pool := range c.service(vip).Pools {
		for i := range pool.Endpoints {
			if pool.Endpoints[i].Addr == addr {
				counts.Selected = int(pool.Endpoints[i].Total)
			}
		}
	}
	return counts
}

// evenness returns the verdict of a ServicePort, of the worst of its pools.
func (c *census) evenness(vip dataplane.VIP) *observe.Evenness {
	service := c.service(vip)
	for i := range service.Pools {
		if e := &service.Pools[i].Evenness; e.Verdict() == service.Verdict() {
			return e
		}
	}
	return &observe.Evenness{Untested: "not known"}
}

// since returns by how much counts have grown, beside what clients have opened.
func (c Counts) since(before Counts, opened int) Counts {
	return Counts{Opened: opened, Answered: c.Answered - before.Answered, Selected: c.Selected - before.Selected}
}

// opened returns how many connections were opened to a VIP.
func opened(count testbed.Count) int {
	n := 0
	for _, answers := range count.Endpoints {
		n += answers
	}
	for _, failures := range count.Failures {
		n += failures
	}
	return n
}

// check reports counts that do not agree.
func (r *run) check(of string, counts Counts) {
	if !counts.agree(r.report.observed()) {
		r.report.Differences = append(r.report.Differences, Difference{of, counts, r.report.observed()})
	}
}

// countMeasured adds to the report what was counted for the measurement: of each
// ServicePort and of each endpoint. It begins the count of what comes next.
func (r *run) countMeasured(tally *testbed.Tally) error {
	now, err := r.takeCensus()
	if err != nil {
		return err
	}
	for i := range r.report.Services {
		service := &r.report.Services[i]
		var endpoints []netip.AddrPort
		for _, endpoint := range service.Endpoints {
			endpoints = append(endpoints, endpoint.Addr)
		}
		service.Counts = now.of(service.VIP, endpoints).since(
			r.counted.of(service.VIP, endpoints), opened(tally.Of(service.VIP)))
		r.check(service.title(), service.Counts)
		for j := range service.Endpoints {
			endpoint := &service.Endpoints[j]
			counts := now.ofEndpoint(service.VIP, endpoint.Addr).since(
				r.counted.ofEndpoint(service.VIP, endpoint.Addr), endpoint.Connections)
			endpoint.Answered, endpoint.Selected = counts.Answered, counts.Selected
			r.check(service.title()+" "+endpoint.Addr.String(), counts)
		}
		if now.observed() {
			service.Evenness = now.evenness(service.VIP)
		}
	}
	r.counted = now
	return nil
}

// countScaled adds to the report what was counted while scaling, when endpoints came
// and went: of each ServicePort.
func (r *run) countScaled(tally *testbed.Tally) error {
	now, err := r.takeCensus()
	if err != nil {
		return err
	}
	for _, port := range r.shop.served() {
		endpoints := port.endpoints
		if port.title() == r.report.Scaled {
			if endpoints, err = r.scaler.addrs(largestScale()); err != nil {
				return err
			}
		}
		counts := now.of(port.vip, endpoints).since(r.counted.of(port.vip, endpoints), opened(tally.Of(port.vip)))
		r.report.ScalingCounts = r.report.ScalingCounts.plus(counts)
		r.check(port.title()+" while scaling", counts)
	}
	r.counted = now
	r.report.Alarms = now.kernel.Alarms
	for _, latency := range now.kernel.Latencies {
		if latency.Outcome == observe.Translated && latency.Total() > 0 {
			r.report.Latencies = append(r.report.Latencies, latency)
		}
	}
	slices.SortFunc(r.report.Latencies, func(a, b observe.Latency) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Hook, b.Hook))
	})
	return nil
}

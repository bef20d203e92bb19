// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// counts are those of the endpoints of some Services, by name of the Service and
// number of the endpoint. A negative number is of an endpoint that has left.
type counts map[string]map[int]uint64

func keyOf(name string) dataplane.ServicePortKey {
	return dataplane.ServicePortKey{
		ServicePortName: dataplane.ServicePortName{Namespace: "shop", Name: name, Protocol: dataplane.TCP}, Family: dataplane.IPv4,
	}
}

func addrOf(number int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(number)}), 80)
}

// services returns the Services as a snapshot has them. Endpoints with even numbers
// are in the pool of local ones, too.
func (c counts) services() []*observe.Service {
	var all []*observe.Service
	for _, name := range slices.Sorted(maps.Keys(c)) {
		service := &observe.Service{Key: keyOf(name), Pools: []observe.Pool{{}, {Local: true}}}
		for _, number := range slices.Sorted(maps.Keys(c[name])) {
			count := c[name][number]
			service.Drawn += count
			if number < 0 {
				continue
			}
			endpoint := observe.Endpoint{Addr: addrOf(number), Total: count}
			service.Pools[0].Endpoints = append(service.Pools[0].Endpoints, endpoint)
			if number%2 == 0 {
				service.Pools[1].Endpoints = append(service.Pools[1].Endpoints, endpoint)
			}
		}
		all = append(all, service)
	}
	return all
}

// shownSeries returns all series, "rest" being that of the others.
func (l *ledger) shownSeries() (services, endpoints map[string]uint64) {
	services, endpoints = map[string]uint64{"rest": l.serviceRest}, map[string]uint64{"rest": l.endpointRest}
	for _, e := range l.shown {
		services[e.service.Key.Name] = e.series
	}
	for _, e := range l.services {
		for _, endpoint := range e.endpoints {
			endpoints[fmt.Sprintf("%s/%d", e.service.Key.Name, endpoint.addr.Addr().As4()[3])] = endpoint.series
		}
	}
	return services, endpoints
}

func TestLedger(t *testing.T) {
	type series = map[string]uint64
	for _, tc := range []struct {
		name string
		// folds are taken one after the other.
		folds               []counts
		services, endpoints series
	}{
		{
			name:      "nothing counted has no series",
			folds:     []counts{{"a": {1: 0}}},
			services:  series{"rest": 0},
			endpoints: series{"rest": 0},
		},
		{
			name:      "below the limits there is no rest",
			folds:     []counts{{"a": {1: 3, 2: 4}}, {"a": {1: 5, 2: 4}, "b": {3: 1}}},
			services:  series{"a": 9, "b": 1, "rest": 0},
			endpoints: series{"a/1": 5, "a/2": 4, "b/3": 1, "rest": 0},
		},
		{
			name:      "at first those with most are shown, of equals the first by name",
			folds:     []counts{{"a": {1: 2, 2: 2}, "b": {1: 5, 2: 1}, "c": {1: 4}, "d": {1: 4}}},
			services:  series{"b": 6, "a": 4, "rest": 8},
			endpoints: series{"b/1": 5, "c/1": 4, "d/1": 4, "rest": 5},
		},
		{
			name:      "a series stays, whatever others count",
			folds:     []counts{{"a": {1: 1}, "b": {1: 1}}, {"a": {1: 1}, "b": {1: 1}, "c": {1: 99}}},
			services:  series{"a": 1, "b": 1, "rest": 99},
			endpoints: series{"a/1": 1, "b/1": 1, "c/1": 99, "rest": 0},
		},
		{
			name: "where one leaves another gets its place and starts there",
			folds: []counts{
				{"a": {1: 5}, "b": {1: 4}, "c": {1: 3}}, {"b": {1: 4}, "c": {1: 3}}, {"b": {1: 4}, "c": {1: 7}},
			},
			services:  series{"b": 4, "c": 4, "rest": 3},
			endpoints: series{"b/1": 4, "c/1": 7, "rest": 0},
		},
		{
			name: "an endpoint that was hidden starts where it is shown",
			folds: []counts{
				{"a": {1: 9, 2: 8, 3: 7, 4: 6}}, {"a": {-1: 9, 2: 8, 3: 7, 4: 10}}, {"a": {-1: 9, 2: 8, 3: 7, 4: 11}},
			},
			services:  series{"a": 35, "rest": 0},
			endpoints: series{"a/2": 8, "a/3": 7, "a/4": 1, "rest": 10},
		},
		{
			name:      "a Service that comes back is counted from 0",
			folds:     []counts{{"a": {1: 5}}, {}, {"a": {1: 2}}},
			services:  series{"a": 2, "rest": 0},
			endpoints: series{"a/1": 2, "rest": 0},
		},
		{
			name:      "a counter that was restarted goes on",
			folds:     []counts{{"a": {1: 5}}, {"a": {1: 2}}},
			services:  series{"a": 7, "rest": 0},
			endpoints: series{"a/1": 7, "rest": 0},
		},
		{
			name:      "what an endpoint counted before it left is in the rest",
			folds:     []counts{{"a": {1: 5}}, {"a": {-1: 7, 2: 1}}},
			services:  series{"a": 8, "rest": 0},
			endpoints: series{"a/2": 1, "rest": 2},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(2, 3)
			for _, c := range tc.folds {
				l.fold(c.services())
			}
			services, endpoints := l.shownSeries()
			if diff := cmp.Diff(tc.services, services); diff != "" {
				t.Errorf("series of Services (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.endpoints, endpoints); diff != "" {
				t.Errorf("series of endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

// history is a world of Services whose counters only ever grow, and what was seen of
// it.
type history struct {
	now counts
	// counted is what all Services counted until the last fold.
	counted uint64
	// seen is the part of now that was folded.
	seen counts
	// gone are the Services that were removed since. They do not come back before
	// the next fold, which could not tell that they were gone.
	gone map[string]bool
	// services and endpoints are the series after the last fold; grown is by how
	// much all series ever grew.
	services, endpoints           map[string]uint64
	servicesGrown, endpointsGrown uint64
}

// step changes the world at random.
func (h *history) step(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "service")
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0:
		delete(h.now, name)
		delete(h.seen, name)
		h.gone[name] = true
	case 1: // An endpoint leaves; what it counted stays with the Service.
		number := rapid.IntRange(1, 4).Draw(t, "endpoint")
		if count, there := h.now[name][number]; there {
			delete(h.now[name], number)
			h.now[name][-number] += count
		}
	default:
		if h.gone[name] {
			return
		}
		if h.now[name] == nil {
			h.now[name] = map[int]uint64{}
		}
		h.now[name][rapid.IntRange(1, 4).Draw(t, "endpoint")] += rapid.Uint64Range(0, 5).Draw(t, "connections")
	}
}

func (c counts) total() (sum uint64) {
	for _, endpoints := range c {
		for _, count := range endpoints {
			sum += count
		}
	}
	return sum
}

func (c counts) clone() counts {
	out := counts{}
	for name, endpoints := range c {
		out[name] = maps.Clone(endpoints)
	}
	return out
}

// grow returns by how much the series grew. One whose subject is there must be there,
// and may not decrease.
func grow(t *rapid.T, before, after map[string]uint64, there func(subject string) bool) (sum uint64) {
	for subject, value := range after {
		sum += value - min(before[subject], value)
		if value < before[subject] && there(subject) {
			t.Fatalf("%s fell from %d to %d", subject, before[subject], value)
		}
	}
	for subject := range before {
		if _, shown := after[subject]; !shown && there(subject) {
			t.Fatalf("%s lost its series", subject)
		}
	}
	return sum
}

// TestLedgerProperty is the promise of the package about its series.
func TestLedgerProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		serviceLimit, endpointLimit := rapid.IntRange(0, 6).Draw(t, "service limit"), rapid.IntRange(0, 12).Draw(t, "endpoint limit")
		l := newLedger(serviceLimit, endpointLimit)
		h := history{now: counts{}, seen: counts{}}
		for range rapid.IntRange(1, 20).Draw(t, "folds") {
			h.gone = map[string]bool{}
			for range rapid.IntRange(0, 8).Draw(t, "steps") {
				h.step(t)
			}
			l.fold(h.now.services())
			h.counted += h.now.total() - h.seen.total()
			services, endpoints := l.shownSeries()
			h.check(t, services, endpoints)
			if len(services)-1 > serviceLimit || len(endpoints)-1 > endpointLimit {
				t.Fatalf("%d series of Services, %d of endpoints", len(services)-1, len(endpoints)-1)
			}
			h.seen = h.now.clone()
		}
	})
}

func (h *history) check(t *rapid.T, services, endpoints map[string]uint64) {
	serviceThere := func(name string) bool { return name == "rest" || h.seen[name] != nil && h.now[name] != nil }
	endpointThere := func(subject string) bool {
		if subject == "rest" {
			return true
		}
		var name string
		var number int
		if _, err := fmt.Sscanf(subject, "%1s/%d", &name, &number); err != nil {
			t.Fatal(err)
		}
		_, was := h.seen[name][number]
		_, is := h.now[name][number]
		return was && is
	}
	h.servicesGrown += grow(t, h.services, services, serviceThere)
	h.endpointsGrown += grow(t, h.endpoints, endpoints, endpointThere)
	if h.servicesGrown != h.counted || h.endpointsGrown != h.counted {
		t.Fatalf("%d connections, %d in series of Services, %d in series of endpoints", h.counted, h.servicesGrown, h.endpointsGrown)
	}
	h.services, h.endpoints = services, endpoints
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// A hundred thousand connections that spread as they should are counted to the last one,
// and no Service is taken for uneven.
func TestEvenConnections(t *testing.T) {
	n := newNode(t)
	var services []*service
	var vips []netip.AddrPort
	for i, endpoints := range []int{2, 3, 5, 8, 20} {
		s := newService(fmt.Sprintf("even-%d", endpoints), i, dataplane.UDP, sinkPort, endpoints)
		services, vips = append(services, s), append(vips, s.addr())
	}
	n.write(t, services...)
	n.start(t)
	nft(t, sink)
	n.awaitEpochs(t, services...)
	tr := newTraffic(n.cluster)
	const steps, connections = 10, 100_000
	for range steps {
		tr.burst(t, connections/steps/len(vips), vips...)
		for _, s := range services {
			if got := n.service(t, s); got.Verdict == observe.NotEven {
				t.Errorf("%s is uneven after %d draws, with evidence e^%.1f", s.name, got.Pools[0].Verdict.Draws, got.LogE)
			}
		}
	}
	n.awaitSelections(t, tr, services...)
	for _, s := range services {
		got := n.service(t, s)
		equal(t, s.name+": verdict", got.Verdict, observe.Even)
		equal(t, s.name+": draws for the verdict", got.Pools[0].Verdict.Draws, got.Selections)
		var drawn, all uint64
		for _, ep := range got.Pools[0].Endpoints {
			drawn, all = drawn+ep.Drawn, all+ep.Total
		}
		equal(t, s.name+": draws and connections of all endpoints", []uint64{drawn, all}, []uint64{got.Selections, got.Selections})
	}
	status := n.status(t)
	equal(t, "alarms", status.Alarms, []api.Alarm{})
	equal(t, "losses", status.Probes.Losses, observe.Losses{})
}

// Buckets that lead elsewhere are found, though the agent puts them right at once.
func TestSkewedBuckets(t *testing.T) {
	n := newNode(t)
	greedy := newService("greedy", 1, dataplane.UDP, sinkPort, 5)
	astray := newService("astray", 2, dataplane.UDP, sinkPort, 3)
	sound := newService("sound", 3, dataplane.UDP, sinkPort, 4)
	services := []*service{greedy, astray, sound}
	n.write(t, services...)
	n.start(t)
	nft(t, sink)
	n.awaitEpochs(t, services...)
	tr := newTraffic(n.cluster)
	const even, skewed = 2000, 2000
	burst := func(count int) { tr.burst(t, count, greedy.addr(), astray.addr(), sound.addr()) }
	burst(even)
	n.awaitSelections(t, tr, services...)
	for _, s := range services {
		equal(t, s.name+": verdict", n.service(t, s).Verdict, observe.Even)
	}

	// An agent that is stopped cannot put the tables right.
	n.signal(t, unix.SIGSTOP)
	before := endpointsMap(t)
	point(t, greedy, 2, greedy.endpoints[0])
	point(t, greedy, 4, greedy.endpoints[0])
	point(t, astray, 1, greedy.endpoints[1])
	burst(skewed)
	n.signal(t, unix.SIGCONT)
	await(t, func() string {
		if now := endpointsMap(t); now != before {
			return "the tables are not put right: " + now
		}
		return ""
	})
	n.awaitSelections(t, tr, services...)

	for s, want := range map[*service]observe.Verdict{
		greedy: observe.NotEven, astray: observe.NotEven, sound: observe.Even,
	} {
		equal(t, s.name+": verdict", n.service(t, s).Verdict, want)
	}
	kinds := make(map[string]string)
	for _, a := range n.status(t).Alarms {
		kinds[fmt.Sprintf("%s %s", a.Service, a.Kind)] = a.Text
	}
	for what, endpoint := range map[string]netip.AddrPort{
		// The one that has got what was the others', and the one that has lost its own.
		"shop/greedy uneven":           greedy.endpoints[0],
		"shop/astray uneven":           astray.endpoints[1],
		"shop/astray unknown-endpoint": greedy.endpoints[1],
	} {
		if text := kinds[what]; !strings.Contains(text, endpoint.String()+" ") && !strings.Contains(text, endpoint.String()+",") {
			t.Errorf("%s: the alarm is %q, want one that names %s", what, text, endpoint)
		}
		delete(kinds, what)
	}
	equal(t, "other alarms", kinds, map[string]string{})

	buckets := ask[api.ServiceList](t, n, "buckets", "shop/greedy").Items[0].Pools[0]
	for i, ep := range buckets.Endpoints {
		share := even/5 + skewed*[]float64{0.6, 0.2, 0, 0.2, 0}[i]
		if got := float64(ep.Drawn); got < 0.8*share || got > 1.2*share {
			t.Errorf("%s was drawn %.0f times, want about %.0f", ep.Address, got, share)
		}
	}
	if out, err := n.run(t, "status", "--socket", n.socket); err == nil || !strings.Contains(out, "shop/greedy (udp, IPv4) is uneven") {
		t.Errorf("status ends with %v and prints no alarm:\n%s", err, out)
	}
}

// point makes a bucket of a Service lead elsewhere.
func point(t testing.TB, s *service, bucket int, to netip.AddrPort) {
	t.Helper()
	key := fmt.Sprintf("%s . %d . %d", s.vip.Addr, s.vip.Port, bucket)
	nft(t, fmt.Sprintf(`
delete element ip veridict endpoints-udp { %s }
add element ip veridict endpoints-udp { %s : %s . %d }
`, key, key, to.Addr(), to.Port()))
}

// endpointsMap returns all buckets of UDP, in an order of their own.
func endpointsMap(t testing.TB) string {
	t.Helper()
	return sortedLines(strings.ReplaceAll(nft(t, "list map ip veridict endpoints-udp"), ",", "\n"))
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// bpftool and the command print the same numbers.
func TestBucketsEqualThePinnedMap(t *testing.T) {
	n := newNode(t)
	s := newService("web", 1, dataplane.TCP, 8080, 4)
	n.serve(t, s)
	n.write(t, s)
	n.start(t)
	want := newTraffic(n.cluster).connect(t, 100, s.vip)

	printed := make(map[string]uint64)
	for _, ep := range ask[api.ServiceList](t, n, "buckets", "shop/web").Items[0].Pools[0].Endpoints {
		printed[ep.Address] = ep.Total
	}
	equal(t, "connections that veridict buckets prints", printed, want)

	var entries []struct {
		Formatted struct {
			Key struct {
				VIP          []byte4 `json:"vip"`
				Port         uint16  `json:"port"`
				Endpoint     []byte4 `json:"endpoint"`
				EndpointPort uint16  `json:"endpoint_port"`
			} `json:"key"`
			Value struct{ Drawn, Pinned uint64 } `json:"value"`
		} `json:"formatted"`
	}
	out, err := exec.CommandContext(t.Context(), "bpftool", "-j", "map", "dump", "pinned", filepath.Join(n.pins, "selections4")).Output()
	must(t, "bpftool map dump", err)
	must(t, "read what bpftool prints", json.Unmarshal(out, &entries))
	dumped := make(map[string]uint64)
	for _, e := range entries {
		k := e.Formatted.Key
		equal(t, "VIP", netip.AddrPortFrom(address(t, k.VIP), k.Port), s.addr())
		dumped[netip.AddrPortFrom(address(t, k.Endpoint), k.EndpointPort).String()] = e.Formatted.Value.Drawn + e.Formatted.Value.Pinned
	}
	equal(t, "connections that bpftool prints", dumped, printed)
}

// byte4 is a byte of an address as bpftool prints it: a number, not a text.
type byte4 uint16

func address(t testing.TB, bytes []byte4) netip.Addr {
	t.Helper()
	raw := make([]byte, len(bytes))
	for i, b := range bytes {
		raw[i] = byte(b)
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		t.Fatalf("%v is no address", bytes)
	}
	return addr
}

// What other rules translate is timed as foreign, and is no Service's connection.
func TestForeignTranslations(t *testing.T) {
	n := newNode(t)
	s := newService("web", 1, dataplane.TCP, 8080, 2)
	n.serve(t, s)
	n.write(t, s)
	n.start(t)
	foreign := dataplane.VIP{Addr: netip.MustParseAddr("10.240.0.1"), Protocol: dataplane.TCP, Port: 9090}
	nft(t, fmt.Sprintf(`
table ip hostport {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s tcp dport %d dnat to %s
	}
}`, foreign.Addr, foreign.Port, s.endpoints[0]))
	tr := newTraffic(n.cluster)
	const own, others = 30, 20
	tr.connect(t, own, s.vip)
	tr.connect(t, others, foreign)

	got := make(map[string]uint64)
	for _, l := range ask[api.LatencyList](t, n, "latency").Items {
		if l.Count > 0 {
			got[fmt.Sprintf("%s %s", l.Hook, l.Outcome)] = l.Count
			if l.P50 <= 0 || l.P99 < l.P50 || l.P99 > 1 {
				t.Errorf("%s: half are below %g s, 99 %% below %g s", l.Outcome, l.P50, l.P99)
			}
		}
	}
	equal(t, "first packets", got, map[string]uint64{"prerouting translated": own, "prerouting foreign": others})
	out, err := n.run(t, "latency", "--socket", n.socket)
	must(t, "latency", err)
	if !strings.Contains(out, "foreign") {
		t.Errorf("latency does not print it:\n%s", out)
	}
	status := n.status(t)
	equal(t, "selections and foreign", []uint64{status.Probes.Selections, status.Probes.Foreign}, []uint64{own, others})
	equal(t, "selections of the Service", n.service(t, s).Selections, uint64(own))
}

// From the change of an object to the first connection to the new endpoint.
func TestProgrammingLatency(t *testing.T) {
	n := newNode(t)
	s := newService("web", 1, dataplane.UDP, sinkPort, 4)
	all := s.endpoints
	s.endpoints = slices.Clone(all[:2])
	n.write(t, s)
	n.start(t)
	nft(t, sink)
	n.awaitEpochs(t, s)
	tr := newTraffic(n.cluster)
	s.endpoints = all
	var measured api.Quantiles
	var took time.Duration
	// Only a Service that has traffic tells how long it takes.
	tr.during(t, s.addr(), func() {
		await(t, func() string {
			if n.status(t).Probes.Selections == 0 {
				return "no connections"
			}
			return ""
		})
		equal(t, "measured before anything has changed", n.status(t).Programming.Count, uint64(0))
		began := time.Now()
		n.write(t, s)
		await(t, func() string {
			if measured = n.status(t).Programming; measured.Count < 2 {
				return fmt.Sprintf("%d new endpoints have been measured, want 2", measured.Count)
			}
			return ""
		})
		took = time.Since(began)
	})
	if measured.Count != 2 || measured.Mean <= 0 || measured.Mean > took.Seconds() {
		t.Errorf("%d endpoints took %g s, want 2 and more than 0 and at most %s", measured.Count, measured.Mean, took)
	}
	n.awaitSelections(t, tr, s)
	got := n.service(t, s)
	equal(t, "verdict of the new set", slices.Contains([]observe.Verdict{observe.Even, observe.TooFew}, got.Verdict), true)
	equal(t, "selections", n.totals(t, s)[all[3].String()] > 0, true)
	equal(t, "alarms", n.status(t).Alarms, []api.Alarm{})
}

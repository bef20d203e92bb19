// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// pinRig is a Syncer on a fake kernel with a ServicePort that has session affinity.
type pinRig struct {
	t      *testing.T
	fake   *Fake
	syncer *Syncer
	sp     dataplane.ServicePort
}

func newPinRig(t *testing.T) *pinRig {
	r := &pinRig{t: t, fake: NewFake(), sp: servicePort("sticky", webVIP, remote(0, 3)...)}
	r.sp.AffinitySeconds = 60
	r.restart()
	return r
}

func (r *pinRig) restart() {
	r.t.Helper()
	r.syncer = r.fake.NewSyncer(Options{})
	mustReset(r.t, r.syncer, stateOf(dataplane.Settings{}, r.sp))
	r.sweep()
}

func (r *pinRig) change(change func(*dataplane.ServicePort)) {
	r.t.Helper()
	sp := r.sp
	sp.Endpoints = slices.Clone(sp.Endpoints)
	change(&sp)
	r.sp = sp
	mustSync(r.t, r.syncer, dataplane.Update{Changed: []dataplane.ServicePort{sp}})
	r.sweep()
}

func (r *pinRig) sweep() SweepReport {
	r.t.Helper()
	report, err := r.syncer.Sweep(r.t.Context())
	if err != nil {
		r.t.Fatalf("sweep: %v", err)
	}
	return report
}

// pin writes a pin as a packet does.
func (r *pinRig) pin(group pinGroup, client string, endpoint int, left time.Duration) {
	r.t.Helper()
	e := pinElement(group, netip.MustParseAddr(client), netip.MustParseAddrPort(remote(0, 4)[endpoint]))
	e.timeout = left
	if err := r.fake.apply(r.t.Context(), families()[0], []op{{element: e}}); err != nil {
		r.t.Fatalf("pin: %v", err)
	}
}

func (r *pinRig) want(pins ...string) {
	r.t.Helper()
	var got []string
	for _, set := range []string{affinityMap(dataplane.TCP), affinityIDMap(dataplane.TCP)} {
		for _, e := range r.fake.tables[dataplane.IPv4].sets[set].elements {
			got = append(got, e.text(families()[0])+" "+e.timeout.String())
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(pins, got); diff != "" {
		r.t.Errorf("pins (-want +got):\n%s", diff)
	}
}

func TestPinsFollowEndpoints(t *testing.T) {
	byVIP := func(r *pinRig) pinGroup { return pinGroup{vip: r.sp.VIP()} }
	r := newPinRig(t)
	r.pin(byVIP(r), "10.1.0.1", 0, 10*time.Second)
	r.pin(byVIP(r), "10.1.0.2", 2, 10*time.Second)
	r.change(func(sp *dataplane.ServicePort) { sp.Endpoints = sp.Endpoints[1:] })
	r.want("10.1.0.2 . 172.30.0.1 . 80 : 10.180.1.3 . 8080 10s")

	r.restart()
	r.want("10.1.0.2 . 172.30.0.1 . 80 : 10.180.1.3 . 8080 10s")

	r.change(func(sp *dataplane.ServicePort) { sp.AffinitySeconds = 5 })
	r.want("10.1.0.2 . 172.30.0.1 . 80 : 10.180.1.3 . 8080 5s")

	r.change(func(sp *dataplane.ServicePort) { sp.AffinitySeconds = 0 })
	r.want()
}

// A pin belongs to the ServicePort: it stays when frontends come and go.
func TestPinsMoveWithFrontends(t *testing.T) {
	r := newPinRig(t)
	r.pin(pinGroup{vip: r.sp.VIP()}, "10.1.0.1", 1, 10*time.Second)
	r.change(func(sp *dataplane.ServicePort) { sp.External = &dataplane.External{NodePort: 30080} })
	r.want("10.1.0.1 . 1 : 10.180.1.2 . 8080 10s")
	r.restart()
	r.want("10.1.0.1 . 1 : 10.180.1.2 . 8080 10s")
	r.change(func(sp *dataplane.ServicePort) { sp.External = nil })
	r.want("10.1.0.1 . 172.30.0.1 . 80 : 10.180.1.2 . 8080 10s")
}

// A pin of one scope is nothing to the other.
func TestPinsOfScopes(t *testing.T) {
	r := newPinRig(t)
	r.change(func(sp *dataplane.ServicePort) {
		sp.External = &dataplane.External{NodePort: 30080, Local: true}
		sp.LocalEndpoints = sp.Endpoints[:1]
	})
	group := pinGroup{vip: dataplane.VIP{Protocol: dataplane.TCP}, id: 1}
	local := group
	local.id += localOffset
	r.pin(group, "10.1.0.1", 1, time.Second)
	r.pin(local, "10.1.0.2", 0, time.Second)
	r.pin(local, "10.1.0.3", 1, time.Second)
	r.syncer.sweeper.books[dataplane.IPv4].markDirty(dataplane.TCP)
	r.sweep()
	r.want("10.1.0.1 . 1 : 10.180.1.2 . 8080 1s", "10.1.0.2 . 65537 : 10.180.1.1 . 8080 1s")
}

// Affinity ids are kept over a restart, also where others came first meanwhile.
func TestAffinityIDsSurviveRestart(t *testing.T) {
	fake := NewFake()
	var list []dataplane.ServicePort
	for _, name := range []string{"a", "b", "c"} {
		sp := servicePort(name, "172.30.0.5"+map[string]string{"a": "1", "b": "2", "c": "3"}[name]+":80/tcp", remote(0, 2)...)
		sp.AffinitySeconds = 60
		sp.External = &dataplane.External{IPs: []netip.Addr{sp.ClusterIP.Next().Next().Next()}}
		list = append(list, sp)
	}
	s := fake.NewSyncer(Options{})
	mustReset(t, s, stateOf(dataplane.Settings{}, list...))
	before := s.tables[0].ids.owned
	again := fake.NewSyncer(Options{})
	report := mustReset(t, again, stateOf(dataplane.Settings{}, list[1:]...))
	after := again.tables[0].ids.owned
	for _, sp := range list[1:] {
		if before[sp.Key] != after[sp.Key] || after[sp.Key] == 0 {
			t.Errorf("%s had id %d and has %d", sp.Key, before[sp.Key], after[sp.Key])
		}
	}
	// Those of the one that is gone: verdict, affinity, pin and masquerade of one
	// frontend, verdict, affinity and pin of the other, its cluster IP and rows.
	if report.ElementsSent > 12 {
		t.Errorf("%d elements sent for one ServicePort that left", report.ElementsSent)
	}
}

// Meanwhile pins expire and others are written: the rest is done all the same.
func TestSweepGoesOnWithoutThePinsThatLeft(t *testing.T) {
	r := newPinRig(t)
	group := pinGroup{vip: r.sp.VIP()}
	for _, client := range []string{"10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"} {
		r.pin(group, client, 0, time.Second)
	}
	gone := pinElement(group, netip.MustParseAddr("10.1.0.3"), netip.MustParseAddrPort(remote(0, 4)[0]))
	r.fake.Refuse = func(c Commit) error {
		for _, change := range c.Changes {
			if change.Delete && change.Element == gone.keyText(families()[0]) {
				return syscall.ENOENT
			}
		}
		return nil
	}
	r.change(func(sp *dataplane.ServicePort) { sp.Endpoints = sp.Endpoints[1:] })
	r.want("10.1.0.3 . 172.30.0.1 . 80 : 10.180.1.1 . 8080 1s")
}

// The rules of pins name what the kernel then holds, whoever writes them.
func TestPinRulesOfEachFamily(t *testing.T) {
	for _, f := range families() {
		v := variant{kind: pinVariant, n: 7, seconds: 60, protocol: dataplane.UDP, scope: localScope}
		chain := v.chain(f, MarkFree)
		want := "meta l4proto udp update @affinity-id-udp { ct original " + f.ip + " saddr . numgen inc mod 1 offset 65543 timeout 60s : ct reply " +
			f.ip + " saddr . ct reply proto-src } accept"
		if diff := cmp.Diff([]string{want, "goto unpinned"}, chain.rules); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.id, diff)
		}
		if got := chain.byNetlink(f); got != (f.id == dataplane.IPv6) {
			t.Errorf("%s: written over netlink: %t", f.id, got)
		}
	}
}

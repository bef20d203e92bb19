// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/dataplane"
)

// Whatever happens to the tables, they end up as if the last state had been
// programmed into an empty kernel.
func TestAnyHistoryEndsInTheState(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		rapid.Check(t, func(rt *rapid.T) {
			h := newHistory(t, rt, layout)
			rt.Repeat(map[string]func(*rapid.T){
				"":         h.check,
				"update":   h.update,
				"settings": h.settings,
				"wait":     h.wait,
				"restart":  h.restart,
				"flush":    h.flush,
				"fail":     h.fail,
				"poison":   h.poison,
			})
			h.finish(rt)
		})
	})
}

// history is a Syncer on a fake kernel, and the state that it was told.
type history struct {
	t        *testing.T
	options  Options
	clock    *clock
	fake     *Fake
	overseer *overseer
	syncer   *Syncer
	state    dataplane.State
	report   dataplane.Report
	// failIn is the number of transactions until one fails with failure.
	failIn  int
	failure error
	// poisoned is part of the elements that the kernel refuses, if not empty.
	poisoned string
	// disturbed says that there were failures since the last good Reset.
	disturbed bool
}

func newHistory(t *testing.T, rt *rapid.T, layout Layout) *history {
	h := &history{t: t, clock: newClock(), fake: NewFake()}
	h.options = Options{
		Layout: layout, Now: h.clock.now,
		BatchElements: rapid.SampledFrom([]int{1, 7, 50, 4000}).Draw(rt, "batch"),
	}
	h.state = dataplane.State{ServicePorts: make(map[dataplane.ServicePortKey]dataplane.ServicePort)}
	h.fake.Refuse = h.refuse
	h.overseer = oversee(h.fake, layout, h.clock, 100*time.Millisecond)
	h.syncer = h.fake.NewSyncer(h.options)
	h.reset(rt)
	return h
}

func (h *history) refuse(c Commit) error {
	if h.failIn > 0 {
		if h.failIn--; h.failIn == 0 {
			h.disturbed = true
			return h.failure
		}
	}
	for _, change := range c.Changes {
		if h.poisoned != "" && !change.Delete && strings.HasSuffix(change.Element, h.poisoned) {
			h.disturbed = true
			return syscall.ENFILE
		}
	}
	return nil
}

// reset calls Reset until it succeeds.
func (h *history) reset(rt *rapid.T) {
	var err error
	for range 3 {
		if h.report, err = h.syncer.Reset(h.t.Context(), h.state); err == nil {
			return
		}
	}
	rt.Fatalf("reset failed three times: %v", err)
}

func (h *history) sync(rt *rapid.T, update dataplane.Update) {
	var err error
	if h.report, err = h.syncer.Sync(h.t.Context(), update); err != nil {
		h.reset(rt)
	}
}

func (h *history) check(rt *rapid.T) {
	if got, want := h.report.Programmed.Elements, elementsIn(h.fake); got != want {
		rt.Fatalf("report has %d elements, the kernel %d", got, want)
	}
	if len(h.overseer.violations) > 0 {
		rt.Fatalf("%s", strings.Join(h.overseer.violations, "\n"))
	}
}

// update changes and removes a few ServicePorts. VIPs are few, so that they pass
// from one to another often.
func (h *history) update(rt *rapid.T) {
	var update dataplane.Update
	next := maps.Clone(h.state.ServicePorts)
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(propertyKeys()), 1, 4, rapid.ID).Draw(rt, "keys") {
		delete(next, key)
		if rapid.IntRange(0, 3).Draw(rt, "remove") == 0 {
			update.Removed = append(update.Removed, key)
			continue
		}
		update.Changed = append(update.Changed, drawServicePort(rt, key))
	}
	taken := make(map[claim]bool)
	for _, sp := range next {
		for _, vip := range sp.VIPs() {
			taken[claim{sp.Key.Family, vip}] = true
		}
	}
	drawn := update.Changed
	update.Changed = nil
	for _, sp := range drawn {
		for _, vip := range rapid.Permutation(propertyVIPs(sp.Key)).Draw(rt, "VIPs") {
			if !taken[claim{sp.Key.Family, vip}] {
				sp.ClusterIP, sp.Port = vip.Addr, vip.Port
				break
			}
		}
		if sp.Port == 0 {
			// Others have all of them, as external IPs.
			update.Removed = append(update.Removed, sp.Key)
			continue
		}
		dropTaken(&sp, taken)
		for _, vip := range sp.VIPs() {
			taken[claim{sp.Key.Family, vip}] = true
		}
		next[sp.Key] = sp
		update.Changed = append(update.Changed, sp)
	}
	h.state.ServicePorts = next
	h.sync(rt, update)
}

// claim is a frontend: a NodePort has no address to tell its family.
type claim struct {
	family dataplane.Family
	vip    dataplane.VIP
}

// dropTaken takes away the external frontends that others have.
func dropTaken(sp *dataplane.ServicePort, taken map[claim]bool) {
	if sp.External == nil {
		return
	}
	e := *sp.External
	free := func(addr netip.Addr) bool {
		vip := dataplane.VIP{Addr: addr, Protocol: sp.Key.Protocol, Port: sp.Port}
		return !taken[claim{sp.Key.Family, vip}] && addr != sp.ClusterIP
	}
	e.IPs = slices.DeleteFunc(slices.Clone(e.IPs), func(a netip.Addr) bool { return !free(a) })
	e.Guarded = slices.DeleteFunc(slices.Clone(e.Guarded), func(a netip.Addr) bool { return !free(a) })
	if taken[claim{sp.Key.Family, dataplane.VIP{Protocol: sp.Key.Protocol, Port: e.NodePort}}] {
		e.NodePort = 0
	}
	sp.External = &e
	if len(e.Guarded) == 0 {
		e.SourceRanges = nil
	}
	if len(e.IPs) == 0 && e.NodePort == 0 {
		sp.External = nil
	}
}

// drawServicePort draws all but the cluster IP and the port.
func drawServicePort(rt *rapid.T, key dataplane.ServicePortKey) dataplane.ServicePort {
	sp := dataplane.ServicePort{
		Key: key, Endpoints: drawEndpoints(rt, key.Family),
		InternalLocal:   rapid.Bool().Draw(rt, "internal local"),
		Algorithm:       rapid.SampledFrom([]dataplane.Algorithm{dataplane.Random, dataplane.Random, dataplane.SourceHash}).Draw(rt, "algorithm"),
		AffinitySeconds: rapid.SampledFrom([]uint32{0, 0, 10, 10800}).Draw(rt, "affinity"),
	}
	if rapid.Bool().Draw(rt, "external") {
		sp.External = drawExternal(rt, key)
	}
	if sp.InternalLocal || sp.External != nil && sp.External.Local {
		for _, ep := range sp.Endpoints {
			if ep.Local {
				sp.LocalEndpoints = append(sp.LocalEndpoints, ep)
			}
		}
	}
	return sp
}

func drawExternal(rt *rapid.T, key dataplane.ServicePortKey) *dataplane.External {
	e := &dataplane.External{
		Local:    rapid.Bool().Draw(rt, "external local"),
		NodePort: rapid.SampledFrom([]uint16{0, 30080, 30081}).Draw(rt, "node port"),
	}
	for _, vip := range propertyVIPs(key)[2:] {
		if !slices.Contains(e.IPs, vip.Addr) && rapid.Bool().Draw(rt, "external IP") {
			e.IPs = append(e.IPs, vip.Addr)
		}
	}
	if len(e.IPs) > 0 && rapid.Bool().Draw(rt, "guarded") {
		e.Guarded = e.IPs[:1]
		for _, bits := range rapid.SliceOfN(rapid.IntRange(1, 32), 1, 3).Draw(rt, "source ranges") {
			e.SourceRanges = append(e.SourceRanges, netip.PrefixFrom(e.IPs[0], bits))
		}
	}
	return e
}

// propertyKeys are three names for each family and protocol.
func propertyKeys() []dataplane.ServicePortKey {
	var keys []dataplane.ServicePortKey
	for _, f := range families() {
		for _, protocol := range dataplane.Protocols() {
			for _, name := range []string{"a", "b", "c"} {
				keys = append(keys, dataplane.ServicePortKey{
					ServicePortName: dataplane.ServicePortName{Namespace: "default", Name: name, Protocol: protocol}, Family: f.id,
				})
			}
		}
	}
	return keys
}

// propertyVIPs are the VIPs that a ServicePort may have: one more than there are
// ServicePorts to compete for them.
func propertyVIPs(key dataplane.ServicePortKey) []dataplane.VIP {
	var vips []dataplane.VIP
	for _, host := range []byte{1, 2, 3} {
		addr := netip.AddrFrom4([4]byte{172, 30, 0, host})
		if key.Family == dataplane.IPv6 {
			addr = netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x30, 15: host})
		}
		for _, port := range []uint16{80, 443} {
			vips = append(vips, dataplane.VIP{Addr: addr, Protocol: key.Protocol, Port: port})
		}
	}
	return vips
}

func drawEndpoints(rt *rapid.T, family dataplane.Family) []dataplane.Endpoint {
	hosts := rapid.SliceOfNDistinct(rapid.ByteRange(1, 24), 0, 20, rapid.ID).Draw(rt, "endpoints")
	slices.Sort(hosts)
	list := make([]dataplane.Endpoint, 0, len(hosts))
	for _, host := range hosts {
		addr := netip.AddrFrom4([4]byte{10, 180, 0, host})
		if family == dataplane.IPv6 {
			addr = netip.AddrFrom16([16]byte{0: 0xfd, 15: host})
		}
		list = append(list, dataplane.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), Local: rapid.Bool().Draw(rt, "local"),
			Weight: rapid.SampledFrom([]uint16{0, 0, 0, 1, 2, 5}).Draw(rt, "weight")})
	}
	return list
}

func (h *history) settings(rt *rapid.T) {
	settings := dataplane.Settings{MasqueradeAll: rapid.Bool().Draw(rt, "masquerade all")}
	if rapid.Bool().Draw(rt, "ranges") {
		settings.ServiceCIDRs = serviceCIDRs
	}
	if rapid.Bool().Draw(rt, "detector") {
		settings.LocalDetector.CIDRs = podCIDRs
	}
	if rapid.Bool().Draw(rt, "node ports") {
		settings.NodePortAddresses = []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("fd00:2::2")}
	}
	if rapid.Bool().Draw(rt, "all addresses") {
		settings.AllAddresses = []dataplane.Family{dataplane.IPv6}
		settings.NodePortAddresses = slices.DeleteFunc(settings.NodePortAddresses, netip.Addr.Is6)
	}
	settings.Localhost = rapid.SampledFrom([]dataplane.LocalhostNodePorts{0, 1, 2}).Draw(rt, "localhost")
	h.state.Settings = settings
	h.sync(rt, dataplane.Update{Settings: &settings})
}

func (h *history) wait(rt *rapid.T) {
	h.clock.advance(rapid.SampledFrom([]time.Duration{50 * time.Millisecond, 100 * time.Millisecond, time.Second, time.Minute}).Draw(rt, "wait"))
	h.sync(rt, dataplane.Update{})
}

// restart replaces the process. Where nothing is left to repair, no element
// changes.
func (h *history) restart(rt *rapid.T) {
	settled := !h.disturbed && h.failIn == 0 && h.poisoned == ""
	h.syncer = h.fake.NewSyncer(h.options)
	h.reset(rt)
	if settled && h.report.ElementsSent != 0 {
		rt.Fatalf("restart with unchanged state sent %d elements", h.report.ElementsSent)
	}
	h.disturbed = h.failIn > 0 || h.poisoned != "" || len(h.report.Rejected) > 0
}

func (h *history) flush(rt *rapid.T) {
	h.fake.FlushRuleset()
	h.overseer.forget()
	h.reset(rt)
}

func (h *history) fail(rt *rapid.T) {
	h.failIn = rapid.IntRange(1, 6).Draw(rt, "transactions")
	h.failure = rapid.SampledFrom([]error{syscall.ENOBUFS, syscall.ENOENT, syscall.EINVAL}).Draw(rt, "errno")
}

func (h *history) poison(rt *rapid.T) {
	h.poisoned = rapid.SampledFrom([]string{"", ".3 . 8080", ".17 . 8080", " : goto cluster-3", " : goto reject-chain"}).Draw(rt, "poison")
	h.disturbed = true
}

// finish ends all failures, waits until nothing is due and compares.
func (h *history) finish(rt *rapid.T) {
	h.failIn, h.poisoned = 0, ""
	h.sync(rt, dataplane.Update{})
	for rounds := 0; !h.report.Due.IsZero(); rounds++ {
		if rounds > 50 {
			rt.Fatalf("still something due: %+v", h.report)
		}
		h.clock.time = h.report.Due
		h.sync(rt, dataplane.Update{})
		h.check(rt)
	}
	if len(h.report.Rejected) > 0 {
		rt.Fatalf("still rejected: %v", h.report.Rejected)
	}
	fresh := NewFake()
	mustReset(h.t, fresh.NewSyncer(h.options), h.state)
	if diff := cmp.Diff(dumpOf(fresh), dumpOf(h.fake)); diff != "" {
		rt.Fatalf("tables (-fresh +with history):\n%s", diff)
	}
	h.compareCounts(rt)
	h.verify(rt)
}

func (h *history) compareCounts(rt *rapid.T) {
	endpoints := 0
	for _, sp := range h.state.ServicePorts {
		endpoints += len(sp.Endpoints)
	}
	got := h.report.Programmed
	if got.ServicePorts != len(h.state.ServicePorts) || got.Endpoints != endpoints {
		rt.Fatalf("report has %d ServicePorts and %d endpoints, the state %d and %d", got.ServicePorts, got.Endpoints, len(h.state.ServicePorts), endpoints)
	}
	frontends, users := 0, 0
	for _, t := range h.syncer.tables {
		frontends += len(t.frontends)
		for _, state := range t.chains {
			users += state.users
		}
		for _, sp := range ofFamily(sorted(h.state), t.family) {
			for _, vip := range sp.VIPs() {
				frontends--
				for _, e := range t.frontends[vip].spec.elements(vip) {
					if isVariant(chainOf(e.verdict)) {
						users--
					}
				}
			}
		}
	}
	if frontends != 0 || users != 0 {
		rt.Fatalf("memory has %d frontends and %d users of chains too many", frontends, users)
	}
}

// verify compares sets and elements as Verify does.
func (h *history) verify(rt *rapid.T) {
	for _, f := range families() {
		v := verifierOf(h.fake, h.options.Layout, f, h.state)
		found, err := h.fake.objects(h.t.Context(), f)
		if err == nil {
			err = v.sets(h.t.Context(), found)
		}
		if err != nil || len(v.list) > 0 {
			rt.Fatalf("verify: %v %s", err, fmt.Sprint(v.list))
		}
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// at has the time be so long after the start of the rig, and syncs.
func (r *rig) at(after time.Duration, changed ...dataplane.ServicePort) dataplane.Report {
	r.t.Helper()
	r.now = time.Unix(1000, 0).Add(after)
	return r.sync(dataplane.Update{Changed: changed})
}

// named is a ServicePort with a cluster IP only.
func named(name string, last byte, serving ...string) dataplane.ServicePort {
	sp := dns(serving...)
	sp.Key.Name, sp.External = name, nil
	sp.ClusterIP = netip.AddrFrom4([4]byte{172, 30, 1, last})
	return sp
}

// Each change has a second look of its own, however close another one was.
func TestSecondLookOfEachChange(t *testing.T) {
	r := newRig(t)
	r.reset(named("a", 1, "10.0.0.1:53"), named("b", 2, "10.0.0.1:53"))
	r.at(200 * time.Millisecond)
	r.at(1000*time.Millisecond, named("a", 1, "10.0.0.2:53"))
	r.at(1199*time.Millisecond, named("b", 2, "10.0.0.2:53"))
	report := r.at(1200 * time.Millisecond)
	if want := time.Unix(1001, 399e6); !report.Due.Equal(want) {
		t.Errorf("due %v, want %v", report.Due, want)
	}
	r.table.flows = []string{"10.1.0.1:1001 > 172.30.1.2:53 > 10.0.0.1:53 nat"}
	if report := r.at(1399 * time.Millisecond); report.StaleFlows != 1 || !report.Due.IsZero() {
		t.Errorf("report %+v, want one stale flow and nothing due", report)
	}
}

// Pins are removed beside the sync, and take clients back until then.
func TestLooksAfterPins(t *testing.T) {
	r := newRig(t)
	sticky := named("a", 1, "10.0.0.2:53")
	sticky.AffinitySeconds = 600
	r.reset(sticky, named("b", 2, "10.0.0.2:53"))
	for _, after := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second} {
		r.table.listed = nil
		r.table.flows = []string{"10.1.0.1:1001 > 172.30.1.1:53 > 10.0.0.1:53 nat"}
		if report := r.at(after); report.StaleFlows != 1 {
			t.Errorf("after %v: %d stale flows, want one", after, report.StaleFlows)
		}
	}
	if diff := cmp.Diff([]string{"IPv4 172.30.1.1:53/udp"}, r.table.listed); diff != "" {
		t.Errorf("listed in the last look (-want +got):\n%s", diff)
	}
	r.table.listed = nil
	if report := r.at(time.Hour); !report.Due.IsZero() || len(r.table.listed) > 0 {
		t.Errorf("due %v, listed %v, want nothing", report.Due, r.table.listed)
	}
}

// What the kernel refuses is served by its old rules, if at all.
func TestRejectedServicePorts(t *testing.T) {
	const stale = "10.1.0.1:1001 > 172.30.1.1:53 > 10.0.0.1:53 nat"
	const other = "10.1.0.1:1001 > 172.30.1.2:53 > 10.0.0.1:53 nat"
	a, b := named("a", 1, "10.0.0.2:53"), named("b", 2, "10.0.0.2:53")
	r := newRig(t, stale, other)
	r.inner.rejected = []dataplane.Rejection{{Key: a.Key, Err: errors.New("refused")}}
	r.reset(a, b)
	r.want(stale)
	if report := r.at(time.Minute); !report.Due.IsZero() {
		t.Errorf("due %v, want to wait for the other Syncer's retry", report.Due)
	}
	r.want(stale)
	r.inner.rejected = nil
	r.at(2 * time.Minute)
	r.want()

	// One that was served before, and is not any more.
	r.inner.rejected = []dataplane.Rejection{{Key: b.Key, Err: errors.New("refused")}}
	r.at(3 * time.Minute)
	r.inner.rejected = nil
	r.table.flows = []string{other}
	r.at(4 * time.Minute)
	r.want()
}

func TestFailuresAreTriedEverLater(t *testing.T) {
	r := newRig(t)
	r.table.failing = errors.New("no memory")
	report := r.reset(named("a", 1, "10.0.0.2:53"))
	var waits []time.Duration
	for range 80 {
		waits = append(waits, report.Due.Sub(r.now))
		report = r.at(report.Due.Sub(time.Unix(1000, 0)))
	}
	want := []time.Duration{1e9, 2e9, 4e9, 8e9, 16e9, 32e9, 60e9, 60e9}
	if diff := cmp.Diff(want, waits[:len(want)]); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	if last := waits[len(waits)-1]; last != retryLast {
		t.Errorf("waits %v in the end, want %v", last, retryLast)
	}
	r.table.failing = nil
	if report = r.at(time.Hour * 10); report.Due.Sub(r.now) != secondLook {
		t.Errorf("due after %v, want the second look", report.Due.Sub(r.now))
	}
}

// On an address that takes NodePorts from now on, flows were not translated.
func TestAnotherAddressTakesNodePorts(t *testing.T) {
	flow := "10.1.0.1:1001 > " + other + " > " + other
	for _, tc := range []struct {
		name     string
		settings dataplane.Settings
		want     []string
	}{
		{name: "named", settings: settings(node4, other4)},
		{name: "all", settings: dataplane.Settings{AllAddresses: []dataplane.Family{dataplane.IPv4}}},
		{name: "all of the other family", settings: dataplane.Settings{AllAddresses: []dataplane.Family{dataplane.IPv6}}, want: []string{flow}},
		{name: "the same as before", settings: settings(node4), want: []string{flow}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, flow)
			r.reset(dns("10.0.0.1:53"))
			r.want(flow)
			r.sync(dataplane.Update{Settings: &tc.settings})
			r.want(tc.want...)
		})
	}
}

// A VIP comes before a NodePort of the same number on the same address.
func TestVIPOfANodePortsNumber(t *testing.T) {
	const a, b = "10.0.0.1:53", "10.0.0.2:53"
	external := named("external", 1, a)
	external.Port = 30053
	external.External = &dataplane.External{IPs: []netip.Addr{node4}}
	viaVIP, viaNodePort := "10.1.0.1:1001 > "+node+" > "+a+" nat", "10.1.0.1:1002 > "+node+" > "+b+" nat"
	r := newRig(t, viaVIP)
	r.reset(external, dns("10.0.0.3:53"))
	r.now = r.now.Add(time.Hour)
	r.sync(dataplane.Update{})
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{dns(b)}})
	r.want(viaVIP)
	// The NodePort is behind the address once the VIP is gone.
	r.table.flows = []string{viaVIP, viaNodePort}
	r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{external.Key}})
	r.want(viaNodePort)
}

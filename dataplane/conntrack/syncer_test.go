// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// fakeTable holds flows by "client > dest > reply source", with "nat" behind it where
// the destination was translated.
type fakeTable struct {
	flows   []string
	listed  []string
	failing error
}

func (f *fakeTable) List(_ context.Context, front Frontend, yield func(Flow)) error {
	f.listed = append(f.listed, front.Family.String()+" "+front.VIP.String())
	if f.failing != nil {
		return f.failing
	}
	for i, text := range f.flows {
		yield(parse(text, i))
	}
	return nil
}

func (f *fakeTable) Delete(_ context.Context, flows []Flow) (int, error) {
	before := len(f.flows)
	f.flows = slices.DeleteFunc(f.flows, func(text string) bool {
		other := parse(text, 0)
		return slices.ContainsFunc(flows, func(flow Flow) bool { return other.Source == flow.Source && other.Dest == flow.Dest })
	})
	return before - len(f.flows), nil
}

func parse(text string, id int) Flow {
	words := strings.Split(text, " > ")
	reply, nat := strings.CutSuffix(words[2], " nat")
	return Flow{
		ID: uint32(id), Source: netip.MustParseAddrPort(words[0]), Dest: netip.MustParseAddrPort(words[1]),
		ReplySource: netip.MustParseAddrPort(reply), Translated: nat,
	}
}

// fakeInner fails and rejects as it is told to.
type fakeInner struct {
	err      error
	rejected []dataplane.Rejection
}

func (f *fakeInner) Reset(context.Context, dataplane.State) (dataplane.Report, error) {
	return dataplane.Report{Rejected: f.rejected}, f.err
}

func (f *fakeInner) Sync(context.Context, dataplane.Update) (dataplane.Report, error) {
	return dataplane.Report{Rejected: f.rejected}, f.err
}

// Two addresses of the node. The first takes NodePorts.
var node4, other4 = netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.1.2")

type rig struct {
	t      *testing.T
	table  *fakeTable
	inner  *fakeInner
	now    time.Time
	syncer *Syncer
}

const (
	vip      = "172.30.0.10:53"
	node     = "192.168.0.2:30053"
	other    = "192.168.1.2:30053"
	external = "5.6.7.8:53"
)

func newRig(t *testing.T, flows ...string) *rig {
	r := &rig{t: t, table: &fakeTable{flows: slices.Clone(flows)}, inner: &fakeInner{}, now: time.Unix(1000, 0)}
	r.syncer = New(r.inner, Options{
		Table: r.table, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return r.now },
		Local: func() func(netip.Addr) bool {
			return func(a netip.Addr) bool { return a == node4 || a == other4 || a.IsLoopback() }
		},
	})
	return r
}

// dns is a ServicePort with endpoints that serve.
func dns(serving ...string) dataplane.ServicePort {
	sp := dataplane.ServicePort{
		Key:       dataplane.ServicePortKey{ServicePortName: dataplane.ServicePortName{Namespace: "ns", Name: "dns", Protocol: dataplane.UDP}, Family: dataplane.IPv4},
		ClusterIP: netip.MustParseAddr("172.30.0.10"), Port: 53,
		External: &dataplane.External{IPs: []netip.Addr{netip.MustParseAddr("5.6.7.8")}, NodePort: 30053},
	}
	for _, text := range serving {
		sp.Serving = append(sp.Serving, netip.MustParseAddrPort(text))
	}
	return sp
}

func settings(nodePortAddresses ...netip.Addr) dataplane.Settings {
	return dataplane.Settings{NodePortAddresses: nodePortAddresses}
}

func state(ports ...dataplane.ServicePort) dataplane.State {
	s := dataplane.State{Settings: settings(node4), ServicePorts: make(map[dataplane.ServicePortKey]dataplane.ServicePort)}
	for _, sp := range ports {
		s.ServicePorts[sp.Key] = sp
	}
	return s
}

func (r *rig) reset(ports ...dataplane.ServicePort) dataplane.Report {
	r.t.Helper()
	report, err := r.syncer.Reset(r.t.Context(), state(ports...))
	if !errors.Is(err, r.inner.err) {
		r.t.Fatal(err)
	}
	return report
}

func (r *rig) sync(update dataplane.Update) dataplane.Report {
	r.t.Helper()
	report, err := r.syncer.Sync(r.t.Context(), update)
	if !errors.Is(err, r.inner.err) {
		r.t.Fatal(err)
	}
	return report
}

func (r *rig) want(flows ...string) {
	r.t.Helper()
	if diff := cmp.Diff(flows, append([]string(nil), r.table.flows...)); diff != "" {
		r.t.Errorf("flows (-want +got):\n%s", diff)
	}
}

func TestStaleFlows(t *testing.T) {
	const a, b = "10.0.0.1:53", "10.0.0.2:53"
	stays := []string{
		"10.1.0.1:1000 > " + vip + " > " + a + " nat",
		"10.1.0.1:1001 > " + node + " > " + a + " nat",
		"10.1.0.1:1002 > " + external + " > " + a + " nat",
		// Other people's traffic.
		"10.1.0.1:1003 > 8.8.8.8:53 > 8.8.8.8:53",
		"10.1.0.1:1004 > 10.9.9.9:30053 > 10.9.9.9:30053",
		"10.1.0.1:1005 > 172.30.0.11:53 > " + b + " nat",
		"10.1.0.1:1006 > 10.9.9.9:30053 > " + b + " nat",
		// Programs of the node, where NodePorts are not served.
		"10.1.0.1:1007 > " + other + " > " + other,
		"127.0.0.1:1008 > 127.0.0.1:30053 > 127.0.0.1:30053",
	}
	goes := []string{
		"10.1.0.1:2000 > " + vip + " > " + b + " nat",
		"10.1.0.1:2001 > " + node + " > " + b + " nat",
		"10.1.0.1:2002 > " + external + " > " + b + " nat",
		"10.1.0.1:2005 > " + other + " > " + b + " nat",
		// From before there was a rule.
		"10.1.0.1:2003 > " + vip + " > " + vip,
		"10.1.0.1:2004 > " + node + " > " + node,
	}
	r := newRig(t, slices.Concat(stays, goes)...)
	if report := r.reset(dns(a)); report.StaleFlows != len(goes) {
		t.Errorf("%d stale flows, want %d", report.StaleFlows, len(goes))
	}
	r.want(stays...)
}

func TestWithoutEndpoints(t *testing.T) {
	flows := []string{
		"10.1.0.1:1001 > " + node + " > 10.0.0.1:53 nat",
		"10.1.0.1:1002 > " + vip + " > 10.0.0.1:53 nat",
	}
	r := newRig(t, flows...)
	r.reset(dns())
	// A program of the node may have the port, now that nothing serves it.
	r.want(flows[0])
}

func TestRemovedServicePort(t *testing.T) {
	flows := []string{
		"10.1.0.1:1001 > " + vip + " > 10.0.0.1:53 nat",
		"10.1.0.1:1002 > " + external + " > " + external,
	}
	r := newRig(t, flows...)
	sp := dns("10.0.0.1:53")
	r.reset(sp)
	r.table.flows = slices.Clone(flows)
	r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{sp.Key}})
	r.want(flows[1])
}

// A VIP that passes on is judged by its new owner.
func TestVIPPassesOn(t *testing.T) {
	flow := "10.1.0.1:1001 > " + vip + " > 10.0.0.2:53 nat"
	sp := dns("10.0.0.1:53")
	r := newRig(t)
	r.reset(sp)
	r.table.flows = []string{flow}
	next := dns("10.0.0.2:53")
	next.Key.Name = "next"
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{next}, Removed: []dataplane.ServicePortKey{sp.Key}})
	r.want(flow)
}

// What is missed while syncs fail is made up for.
func TestFailuresLoseNothing(t *testing.T) {
	const a, b = "10.0.0.1:53", "10.0.0.2:53"
	flow := "10.1.0.1:1001 > " + vip + " > " + a + " nat"
	r := newRig(t, flow)
	r.reset(dns(a))
	r.inner.err = errors.New("refused")
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{dns(b)}})
	r.want(flow)
	r.reset(dns(b))
	r.want(flow)
	r.inner.err = nil
	r.reset(dns(b))
	r.want()
}

func TestTableFailureIsTriedAgain(t *testing.T) {
	flow := "10.1.0.1:1001 > " + vip + " > 10.0.0.1:53 nat"
	r := newRig(t, flow)
	r.table.failing = errors.New("no memory")
	report := r.reset(dns("10.0.0.2:53"))
	if want := r.now.Add(retryFirst); report.Due != want {
		t.Errorf("due %v, want %v", report.Due, want)
	}
	r.table.failing = nil
	r.now = report.Due
	r.sync(dataplane.Update{})
	r.want()
}

// A flow may be confirmed a moment after it was looked for.
func TestSecondLook(t *testing.T) {
	r := newRig(t)
	report := r.reset(dns("10.0.0.2:53"))
	r.table.flows = []string{"10.1.0.1:1001 > " + vip + " > 10.0.0.1:53 nat"}
	r.now = report.Due
	if report = r.sync(dataplane.Update{}); report.StaleFlows != 1 || !report.Due.IsZero() {
		t.Errorf("report %+v, want one stale flow and nothing due", report)
	}
	r.table.listed = nil
	r.sync(dataplane.Update{})
	if len(r.table.listed) > 0 {
		t.Errorf("listed %v although nothing has changed", r.table.listed)
	}
}

func TestOnlyWhatHasChangedIsListed(t *testing.T) {
	r := newRig(t)
	var ports []dataplane.ServicePort
	for i := range 20 {
		sp := dns("10.0.0.1:53")
		sp.Key.Name, sp.External = string(rune('a'+i)), nil
		sp.ClusterIP = netip.AddrFrom4([4]byte{172, 30, 1, byte(i)})
		ports = append(ports, sp)
	}
	tcp := dns("10.0.0.1:53")
	tcp.Key.Protocol = dataplane.TCP
	r.now = r.reset(append(ports, tcp)...).Due
	if diff := cmp.Diff([]string{"IPv4 *:0/Protocol(0)"}, r.table.listed); diff != "" {
		t.Errorf("listed at start (-want +got):\n%s", diff)
	}
	r.now = r.sync(dataplane.Update{}).Due
	r.table.listed = nil
	ports[3].Serving = nil
	tcp.Serving = nil
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{ports[3], tcp}})
	if diff := cmp.Diff([]string{"IPv4 172.30.1.3:53/udp"}, r.table.listed); diff != "" {
		t.Errorf("listed for one change (-want +got):\n%s", diff)
	}
}

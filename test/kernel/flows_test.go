// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/conntrack"
)

// flowsTo are the flows to a frontend as the kernel lists them.
func flowsTo(t *testing.T, family dataplane.Family, vip dataplane.VIP) []conntrack.Flow {
	t.Helper()
	var flows []conntrack.Flow
	err := new(conntrack.Kernel).List(t.Context(), conntrack.Frontend{Family: family, VIP: vip}, func(flow conntrack.Flow) {
		flows = append(flows, flow)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(flows, func(a, b conntrack.Flow) int {
		return cmp.Or(a.Dest.Compare(b.Dest), a.Source.Compare(b.Source))
	})
	return flows
}

// The kernel filters what it lists, and deletes exactly what it is told to.
func TestFlowTable(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			r := newFlowRig(t, family)
			r.serve(r.a)
			r.answers("at first", r.a)
			for i, vip := range r.sp.VIPs() {
				to := r.frontends()[i]
				// The kernel cannot tell IPv6 addresses apart.
				flows := slices.DeleteFunc(flowsTo(t, family, vip), func(flow conntrack.Flow) bool {
					return family == dataplane.IPv6 && flow.Dest != to && flow.Dest.Port() == to.Port()
				})
				if len(flows) != 1 {
					t.Fatalf("flows to %s: %+v, want the one of the client", vip, flows)
				}
				flow := flows[0]
				if flow.Dest != to || flow.ReplySource != r.a.Addr || !flow.Translated {
					t.Errorf("flow %+v, want one to %s that %s answers", flow, to, r.a.Addr)
				}
			}
			flows := flowsTo(t, family, dataplane.VIP{})
			if len(flows) != len(r.frontends()) {
				t.Fatalf("UDP flows: %+v, want one of each frontend", flows)
			}
			other := flows[0]
			other.ID++
			table := new(conntrack.Kernel)
			for _, step := range []struct {
				name   string
				remove []conntrack.Flow
				want   int
				left   []conntrack.Flow
			}{
				{name: "one of another time", remove: []conntrack.Flow{other}, left: flows},
				{name: "two", remove: flows[:2], want: 2, left: flows[2:]},
				{name: "two that are gone and one", remove: flows, want: 1},
			} {
				n, err := table.Delete(t.Context(), step.remove)
				if err != nil || n != step.want {
					t.Errorf("%s: %d deleted, %v, want %d", step.name, n, err, step.want)
				}
				equal(t, step.name, flowsTo(t, family, dataplane.VIP{}), step.left)
			}
		})
	}
}

// Flows to an address from before it took NodePorts were not translated.
func TestUDPFlowsFollowNodePortAddresses(t *testing.T) {
	r := newFlowRig(t, dataplane.IPv4)
	later := netip.AddrPortFrom(nth(localVIPs4.Addr(), 700), r.sp.External.NodePort)
	r.serve(r.a)
	r.settle()
	if _, err := r.send(later, 50*time.Millisecond); err == nil {
		t.Fatalf("%s serves NodePorts, though it should not", later)
	}
	settings := clusterSettings()
	settings.NodePortAddresses = []netip.Addr{nodeIP4, nodeIP6, later.Addr()}
	slices.SortFunc(settings.NodePortAddresses, netip.Addr.Compare)
	if _, err := r.syncer.Sync(t.Context(), dataplane.Update{Settings: &settings}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.send(later, 5*time.Second); err != nil || got != r.a.Addr {
		t.Errorf("%s answers from %s, %v, want %s", later, got, err, r.a.Addr)
	}
}

// The frontends of a ServicePort that is gone pass on in the same update: its
// successor's flows go to its successor's endpoints, others are refused.
func TestUDPFlowsFollowTheVIP(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			r := newFlowRig(t, family)
			r.serve(r.a)
			r.answers("at first", r.a)
			next := r.sp
			next.Key.Name = "successor"
			next.Endpoints, next.Serving = []dataplane.Endpoint{r.b}, []netip.AddrPort{r.b.Addr}
			update := dataplane.Update{Changed: []dataplane.ServicePort{next}, Removed: []dataplane.ServicePortKey{r.sp.Key}}
			if _, err := r.syncer.Sync(t.Context(), update); err != nil {
				t.Fatal(err)
			}
			r.sp = next
			r.answers("from the successor", r.b)
			report, err := r.syncer.Sync(t.Context(), dataplane.Update{Removed: []dataplane.ServicePortKey{next.Key}})
			// The flow to the NodePort stays.
			if err != nil || report.StaleFlows != 2 {
				t.Errorf("%d stale flows, %v, want those to the cluster IP and the external IP", report.StaleFlows, err)
			}
		})
	}
}

// One with a single frontend, as most are: no listing for another one shows its flows.
func TestUDPFlowsToAClusterIPAlone(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			r := newFlowRig(t, family)
			r.sp.External = nil
			r.serve(r.a)
			r.answers("at first", r.a)
			r.serve(r.b)
			r.answers("with its endpoint gone", r.b)
		})
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// policyRig has clients everywhere, and endpoints that answer.
type policyRig struct {
	t         *testing.T
	cluster   *cluster
	syncer    *nftables.Syncer
	near, far netip.AddrPort
	outside   netip.Addr
}

func newPolicyRig(t *testing.T, layout nftables.Layout) *policyRig {
	t.Helper()
	r := &policyRig{t: t, cluster: sharedCluster(t), outside: externalIP4}
	r.near = netip.AddrPortFrom(nth(endpoints4.Addr(), 950), 8080)
	r.far = netip.AddrPortFrom(nth(endpoints4.Addr(), 951), 8080)
	r.cluster.serve(t, dataplane.TCP, r.near, r.far)
	r.cluster.serve(t, dataplane.UDP, r.near)
	r.syncer = newSyncer(t, quiet(layout))
	return r
}

// web is a ServicePort with all kinds of frontends.
func (r *policyRig) web(change func(*dataplane.ServicePort)) dataplane.ServicePort {
	sp := port("web", netip.MustParseAddrPort("10.96.0.95:80"), dataplane.TCP, r.near, r.far)
	for i := range sp.Endpoints {
		sp.Endpoints[i].Local = sp.Endpoints[i].Addr == r.near
	}
	sp.External = &dataplane.External{IPs: []netip.Addr{r.outside}, NodePort: 31095}
	change(&sp)
	return sp
}

func (r *policyRig) reset(ports ...dataplane.ServicePort) {
	r.t.Helper()
	settings := clusterSettings()
	settings.NodePortAddresses = []netip.Addr{nodeIP4}
	mustReset(r.t, r.syncer, stateOf(settings, ports...))
}

// want opens connections and wants all to end in the same way: "dropped", "refused",
// or an endpoint with "masqueraded" behind it where it sees another client. Where any
// of several will do, they are separated by "|".
func (r *policyRig) want(what, client, to, want string) {
	r.t.Helper()
	protocol := dataplane.TCP
	if address, ok := strings.CutSuffix(to, "/udp"); ok {
		to, protocol = address, dataplane.UDP
	}
	dest := netip.MustParseAddrPort(to)
	vip := dataplane.VIP{Addr: dest.Addr(), Port: dest.Port(), Protocol: protocol}
	patience := 5 * time.Second
	connections := 8
	if want == "dropped" {
		patience, connections = 300*time.Millisecond, 1
	}
	pod := map[string]*testbed.Pod{
		"pod": r.cluster.client, "outsider": r.cluster.outsider, "endpoint": r.cluster.endpoints,
		"node": {Namespace: r.cluster.node},
	}[client]
	for range connections {
		if got := r.outcome(pod, vip, patience); !strings.Contains("|"+want+"|", "|"+got+"|") {
			r.t.Errorf("%s: %s to %s: %s, want %s", what, client, to, got, want)
			return
		}
	}
}

// outcome is that of one connection. The node's own address says nothing about
// masquerading.
func (r *policyRig) outcome(client *testbed.Pod, vip dataplane.VIP, patience time.Duration) string {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var answer testbed.Answer
	err := client.Do(func() (err error) {
		answer, err = testbed.Ask(ctx, vip)
		return err
	})
	switch reason := testbed.Reason(err); reason {
	case "":
	case "no answer in time":
		return "dropped"
	default:
		return reason
	}
	name := map[netip.AddrPort]string{r.near: "near", r.far: "far", r.self(): "self"}[answer.Endpoint]
	if len(client.Addrs) > 0 && answer.Client.Addr() != client.Addrs[0] {
		name += " masqueraded"
	}
	return name
}

// self is an endpoint with the address of the pod that has all endpoints.
func (r *policyRig) self() netip.AddrPort {
	return netip.AddrPortFrom(r.cluster.endpoints.Addrs[0], 8095)
}

const (
	clusterFrontend = "10.96.0.95:80"
	outsideFrontend = "10.97.1.1:80"
	nodeFrontend    = "10.97.1.2:31095"
)

// Policies concern their own path only, and pods and the node get around the external
// one (B30, B31, B32).
func TestTrafficPolicies(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		r := newPolicyRig(t, layout)
		externalLocal := func(local bool) func(*dataplane.ServicePort) {
			return func(sp *dataplane.ServicePort) {
				sp.External.Local = true
				if local {
					sp.LocalEndpoints = sp.Endpoints[:1]
				}
			}
		}
		r.reset(r.web(externalLocal(true)))
		for _, to := range []string{outsideFrontend, nodeFrontend} {
			r.want("external Local", "outsider", to, "near")
			r.want("external Local, short circuit", "pod", to, "near|far")
			r.want("external Local, short circuit", "node", to, "near|far")
		}
		r.want("external Local does not concern the cluster IP", "pod", clusterFrontend, "near|far")

		r.reset(r.web(externalLocal(false)))
		for _, to := range []string{outsideFrontend, nodeFrontend} {
			r.want("no local endpoint", "outsider", to, "dropped")
			r.want("no local endpoint, short circuit", "pod", to, "near|far")
			r.want("no local endpoint, short circuit", "node", to, "near|far")
		}

		r.reset(r.web(func(sp *dataplane.ServicePort) { sp.InternalLocal = true }))
		r.want("internal Local without a local endpoint", "pod", clusterFrontend, "dropped")
		r.want("internal Local does not concern the external IP", "outsider", outsideFrontend, "near masqueraded|far masqueraded")
		r.want("nor the NodePort", "pod", nodeFrontend, "near masqueraded|far masqueraded")

		r.reset(r.web(func(sp *dataplane.ServicePort) {
			sp.InternalLocal, sp.External.Local, sp.Endpoints = true, true, nil
		}))
		for _, to := range []string{clusterFrontend, outsideFrontend, nodeFrontend} {
			r.want("no endpoints at all", "pod", to, "refused")
		}
	})
}

// A pod reaches itself by every frontend (B36, B64).
func TestHairpinByEveryFrontend(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		r := newPolicyRig(t, layout)
		r.cluster.serve(t, dataplane.TCP, r.self())
		for _, local := range []bool{false, true} {
			r.reset(r.web(func(sp *dataplane.ServicePort) {
				sp.Endpoints = []dataplane.Endpoint{{Addr: r.self(), Local: true}}
				sp.External.Local, sp.LocalEndpoints = local, sp.Endpoints
			}))
			for _, to := range []string{clusterFrontend, outsideFrontend, nodeFrontend} {
				r.want("the pod itself", "endpoint", to, "self masqueraded")
			}
		}
	})
}

// Source ranges concern the load balancer's address of their Service and nothing else
// (B67).
func TestSourceRanges(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		r := newPolicyRig(t, layout)
		guarded := r.web(func(sp *dataplane.ServicePort) {
			sp.External.Guarded = sp.External.IPs
			sp.External.SourceRanges = []netip.Prefix{
				netip.PrefixFrom(r.cluster.outsider.Addrs[0], 32), netip.PrefixFrom(r.cluster.outsider.Addrs[0], 24),
			}
		})
		// It shares the address.
		open := port("open", netip.MustParseAddrPort("10.96.0.96:81"), dataplane.TCP, r.near)
		open.External = &dataplane.External{IPs: []netip.Addr{r.outside}}
		r.reset(guarded, open)
		r.want("in the ranges", "outsider", outsideFrontend, "near masqueraded|far masqueraded")
		r.want("a pod outside the ranges", "pod", outsideFrontend, "dropped")
		r.want("the node outside the ranges", "node", outsideFrontend, "dropped")
		r.want("another Service of the address", "pod", "10.97.1.1:81", "near masqueraded")
		r.want("the cluster IP", "pod", clusterFrontend, "near|far")
		r.want("the NodePort", "pod", nodeFrontend, "near masqueraded|far masqueraded")

		guarded.External = &dataplane.External{
			IPs: guarded.External.IPs, NodePort: 31095, Guarded: guarded.External.IPs,
			SourceRanges: []netip.Prefix{netip.PrefixFrom(r.cluster.client.Addrs[0], 16)},
		}
		mustSync(t, r.syncer, dataplane.Update{Changed: []dataplane.ServicePort{guarded}})
		r.want("other ranges", "pod", outsideFrontend, "near masqueraded|far masqueraded")
		r.want("other ranges", "outsider", outsideFrontend, "dropped")
		guarded.Endpoints = nil
		mustSync(t, r.syncer, dataplane.Update{Changed: []dataplane.ServicePort{guarded}})
		r.want("ranges without endpoints", "outsider", outsideFrontend, "dropped")
		r.want("no endpoints", "pod", outsideFrontend, "refused")
	})
}

// Protocols are apart (B43), families too (B42), and frontends pass from one Service to
// another in one sync (B44).
func TestFrontendsAreApart(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		r := newPolicyRig(t, layout)
		web := r.web(func(sp *dataplane.ServicePort) { sp.Endpoints = sp.Endpoints[1:] })
		dns := port("dns", netip.MustParseAddrPort(clusterFrontend), dataplane.UDP, r.near)
		dns.External = &dataplane.External{IPs: []netip.Addr{r.outside}, NodePort: 31095}
		web6 := port("web", netip.MustParseAddrPort("[fd00:10:96::95]:80"), dataplane.TCP)
		r.reset(web, dns, web6)
		for _, to := range []string{clusterFrontend, outsideFrontend, nodeFrontend} {
			r.want("TCP", "node", to, "far")
			r.want("UDP", "node", to+"/udp", "near")
		}
		r.want("a family without endpoints", "pod", "[fd00:10:96::95]:80", "refused")
		mustSync(t, r.syncer, dataplane.Update{Removed: []dataplane.ServicePortKey{dns.Key}})
		for _, to := range []string{clusterFrontend, outsideFrontend, nodeFrontend} {
			r.want("TCP when UDP is gone", "node", to, "far")
		}

		heir := r.web(func(sp *dataplane.ServicePort) { sp.Endpoints = sp.Endpoints[:1] })
		heir.Key.Name = "heir"
		mustSync(t, r.syncer, dataplane.Update{
			Removed: []dataplane.ServicePortKey{web.Key}, Changed: []dataplane.ServicePort{heir},
		})
		for _, to := range []string{clusterFrontend, outsideFrontend, nodeFrontend} {
			r.want("the heir", "node", to, "near")
		}
	})
}

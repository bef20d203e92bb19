// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// The tables of a ServicePort with a cluster IP, a load balancer's address and a
// NodePort, by policy, affinity and where its endpoints are.
func TestElementsOfFrontends(t *testing.T) {
	at := func(host byte, local bool) dataplane.Endpoint {
		return dataplane.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 180, 0, host}), 8080), Local: local}
	}
	far, near := at(1, false), at(2, true)
	full := func(change func(*dataplane.ServicePort)) dataplane.ServicePort {
		sp := dataplane.ServicePort{
			Key: dataplane.ServicePortKey{
				ServicePortName: dataplane.ServicePortName{Namespace: "ns", Name: "full", Protocol: dataplane.TCP}, Family: dataplane.IPv4,
			},
			ClusterIP: netip.MustParseAddr("172.30.0.41"), Port: 80, Endpoints: []dataplane.Endpoint{far, near},
			External: &dataplane.External{IPs: []netip.Addr{netip.MustParseAddr("5.6.7.8")}, NodePort: 30080},
		}
		change(&sp)
		return sp
	}
	cases := []struct {
		name string
		sp   dataplane.ServicePort
		want []string
	}{
		{
			name: "policies Cluster",
			sp:   full(func(*dataplane.ServicePort) {}),
			want: []string{
				"masquerade-ips 5.6.7.8 . tcp . 80",
				"masquerade-nodeports tcp . 30080",
				"service-ips 172.30.0.41 . tcp . 80 : goto cluster-2",
				"service-ips 5.6.7.8 . tcp . 80 : goto cluster-2",
				"service-nodeports tcp . 30080 : goto nodeport-2",
			},
		},
		{
			name: "both policies Local",
			sp: full(func(sp *dataplane.ServicePort) {
				sp.InternalLocal, sp.External.Local, sp.LocalEndpoints = true, true, []dataplane.Endpoint{near}
			}),
			want: []string{
				"external-local-ips 5.6.7.8 . tcp . 80",
				"external-local-nodeports tcp . 30080",
				"local-ips 5.6.7.8 . tcp . 80 : goto local-1",
				"local-nodeports tcp . 30080 : goto nodeport-local-1",
				"service-ips 172.30.0.41 . tcp . 80 : goto local-1",
				"service-ips 5.6.7.8 . tcp . 80 : goto cluster-2",
				"service-nodeports tcp . 30080 : goto nodeport-2",
			},
		},
		{
			name: "both policies Local, endpoints elsewhere",
			sp: full(func(sp *dataplane.ServicePort) {
				sp.InternalLocal, sp.External.Local, sp.Endpoints = true, true, []dataplane.Endpoint{far}
			}),
			want: []string{
				"external-local-ips 5.6.7.8 . tcp . 80",
				"external-local-nodeports tcp . 30080",
				"no-endpoint-nodeports tcp . 30080 : drop",
				"no-endpoint-services 172.30.0.41 . tcp . 80 : drop",
				"no-endpoint-services 5.6.7.8 . tcp . 80 : drop",
				"service-ips 5.6.7.8 . tcp . 80 : goto cluster-1",
				"service-nodeports tcp . 30080 : goto nodeport-1",
			},
		},
		{
			name: "no endpoints, with ranges",
			sp: full(func(sp *dataplane.ServicePort) {
				sp.External.Local, sp.Endpoints = true, nil
				sp.External.Guarded = sp.External.IPs
				sp.External.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
			}),
			want: []string{
				"external-local-ips 5.6.7.8 . tcp . 80",
				"external-local-nodeports tcp . 30080",
				"firewall-ips 5.6.7.8 . tcp . 80",
				"no-endpoint-nodeports tcp . 30080 : goto reject-chain",
				"no-endpoint-services 172.30.0.41 . tcp . 80 : goto reject-chain",
				"no-endpoint-services 5.6.7.8 . tcp . 80 : goto reject-chain",
				"source-ranges-tcp 5.6.7.8 . 80 . 203.0.113.0-203.0.113.255",
			},
		},
		{
			name: "affinity, weights and source hash, external policy Local",
			sp: full(func(sp *dataplane.ServicePort) {
				sp.External.Local, sp.AffinitySeconds, sp.Algorithm = true, 60, dataplane.SourceHash
				sp.Endpoints[1].Weight = 3
				sp.LocalEndpoints = []dataplane.Endpoint{near}
			}),
			want: []string{
				"affinity-ips 172.30.0.41 . tcp . 80 : jump affinity-tcp-1",
				"affinity-ips 5.6.7.8 . tcp . 80 : jump affinity-tcp-1",
				"affinity-local-ips 5.6.7.8 . tcp . 80 : jump affinity-local-tcp-1",
				"affinity-local-nodeports tcp . 30080 : jump affinity-local-tcp-1",
				"affinity-nodeports tcp . 30080 : jump affinity-tcp-1",
				"external-local-ips 5.6.7.8 . tcp . 80",
				"external-local-nodeports tcp . 30080",
				"local-ips 5.6.7.8 . tcp . 80 : goto local-hash-1",
				"local-nodeports tcp . 30080 : goto nodeport-local-hash-1",
				"pin-ips 172.30.0.41 . tcp . 80 : goto pin-tcp-1-60s",
				"pin-ips 5.6.7.8 . tcp . 80 : goto pin-tcp-1-60s",
				"pin-local-ips 5.6.7.8 . tcp . 80 : goto pin-local-tcp-1-60s",
				"pin-local-nodeports tcp . 30080 : goto pin-local-tcp-1-60s",
				"pin-nodeports tcp . 30080 : goto pin-tcp-1-60s",
				"service-ips 172.30.0.41 . tcp . 80 : goto cluster-hash-4",
				"service-ips 5.6.7.8 . tcp . 80 : goto cluster-hash-4",
				"service-nodeports tcp . 30080 : goto nodeport-hash-4",
			},
		},
		{
			name: "affinity of a single frontend, internal policy Local",
			sp: full(func(sp *dataplane.ServicePort) {
				sp.External, sp.AffinitySeconds, sp.InternalLocal = nil, 60, true
				sp.LocalEndpoints = []dataplane.Endpoint{near}
			}),
			want: []string{
				"affinity-ips 172.30.0.41 . tcp . 80 : jump affinity",
				"pin-ips 172.30.0.41 . tcp . 80 : goto pin-60s",
				"service-ips 172.30.0.41 . tcp . 80 : goto local-1",
			},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			w := newWanted(families()[0], MarkFree, []dataplane.ServicePort{tc.sp}, newAffinityIDs())
			var got []string
			for _, vip := range tc.sp.VIPs() {
				for _, e := range w.elementsOf(&tc.sp, vip) {
					if e.set != clusterIPs && e.set != hairpinConnections && e.data == "" {
						got = append(got, e.set+" "+e.text(w.family))
					}
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("elements (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHairpins(t *testing.T) {
	near := netip.MustParseAddrPort("10.180.0.2:8080")
	terminating := netip.MustParseAddrPort("10.180.0.1:8080")
	sp := dataplane.ServicePort{
		Endpoints:      []dataplane.Endpoint{{Addr: near, Local: true}, {Addr: netip.MustParseAddrPort("10.180.1.1:8080")}},
		LocalEndpoints: []dataplane.Endpoint{{Addr: terminating, Local: true}},
	}
	cases := []struct {
		name          string
		internalLocal bool
		external      *dataplane.External
		want          []netip.AddrPort
	}{
		{"both lists in use", false, &dataplane.External{Local: true}, []netip.AddrPort{terminating, near}},
		{"internal Local only", true, nil, []netip.AddrPort{terminating}},
		{"internal Local, external Cluster", true, &dataplane.External{}, []netip.AddrPort{terminating, near}},
	}
	for _, tc := range cases {
		sp.InternalLocal, sp.External = tc.internalLocal, tc.external
		if diff := cmp.Diff(tc.want, hairpins(&sp), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func TestTraffic(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       *convert.Traffic
		problems   []string
	}{
		{name: "nothing beyond a cluster IP", text: "spec: {internalTrafficPolicy: Cluster, sessionAffinity: None}"},
		{
			name: "external IPs of both families, sorted, each once, leading zeros",
			text: `spec: {externalIPs: [192.0.2.9, 192.000.002.01, "2001:db8::1", 192.0.2.9]}`,
			want: &convert.Traffic{ExternalIPs: addrs("192.0.2.1", "192.0.2.9", "2001:db8::1")},
		},
		{
			name: "bad external IPs", text: "spec: {externalIPs: [x, 127.0.0.1, 0.0.0.0, 192.0.2.1]}",
			want: &convert.Traffic{ExternalIPs: addrs("192.0.2.1")},
			problems: []string{
				`spec.externalIPs[0]: "x" is not an IP address`,
				"spec.externalIPs[1]: 127.0.0.1: unspecified, loopback and multicast addresses cannot be served",
				"spec.externalIPs[2]: 0.0.0.0: unspecified, loopback and multicast addresses cannot be served",
			},
		},
		{
			name: "addresses of the load balancer, except those of mode Proxy and names",
			text: "spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{ip: 192.0.2.3, ipMode: VIP}, {ip: 192.0.2.2, ipMode: Proxy}, {ip: 192.0.2.1}, {hostname: a}]}}",
			want: &convert.Traffic{LoadBalancerIPs: addrs("192.0.2.1", "192.0.2.3")},
		},
		{name: "addresses and ranges that a former type has left", text: "spec: {type: NodePort, loadBalancerSourceRanges: [10.0.0.0/8]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.3}]}}"},
		{
			name: "source ranges", text: `spec: {type: LoadBalancer, loadBalancerSourceRanges: [" 10.1.0.0/8 ", "fd00::/64", 10.0.0.0/8, 10.0.0.0/33]}`,
			want:     &convert.Traffic{SourceRanges: prefixes("10.0.0.0/8", "fd00::/64")},
			problems: []string{`spec.loadBalancerSourceRanges[3]: "10.0.0.0/33" is not a CIDR`},
		},
		{
			name: "policies", text: "spec: {type: NodePort, internalTrafficPolicy: Local, externalTrafficPolicy: Local, healthCheckNodePort: 31000}",
			want: &convert.Traffic{InternalLocal: true, ExternalLocal: true},
		},
		{name: "no external policy without external traffic", text: "spec: {externalTrafficPolicy: Local}"},
		{
			name: "an external policy of external IPs", text: "spec: {externalIPs: [192.0.2.1], externalTrafficPolicy: Local}",
			want: &convert.Traffic{ExternalIPs: addrs("192.0.2.1"), ExternalLocal: true},
		},
		{
			name: "a health check", text: "spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000}",
			want: &convert.Traffic{ExternalLocal: true, HealthCheckPort: 31000},
		},
		{name: "no health check with policy Cluster", text: "spec: {type: LoadBalancer, healthCheckNodePort: 31000}"},
		{
			name: "bad values", text: "spec: {internalTrafficPolicy: local, sessionAffinity: clientIP}",
			problems: []string{
				`spec.internalTrafficPolicy: "local" is not Cluster or Local; Cluster is used`,
				`spec.sessionAffinity: "clientIP" is not None or ClientIP; None is used`,
			},
		},
		{name: "affinity without a time", text: "spec: {sessionAffinity: ClientIP}", want: &convert.Traffic{AffinitySeconds: 10800}},
		{
			name: "the longest affinity", text: "spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86400}}}",
			want: &convert.Traffic{AffinitySeconds: 86400},
		},
		{
			name: "too long an affinity", text: "spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}}",
			want:     &convert.Traffic{AffinitySeconds: 10800},
			problems: []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401 is not between 1 and 86400; 10800 is used"},
		},
		{
			name: "annotations", text: `metadata: {annotations: {veridict.dev/algorithm: source-hash, veridict.dev/zone-weights: "b=1, a = 100"}}`,
			want: &convert.Traffic{Algorithm: dataplane.SourceHash, ZoneWeights: []convert.ZoneWeight{{"a", 100}, {"b", 1}}},
		},
		{name: "the algorithm that there is anyway", text: "metadata: {annotations: {veridict.dev/algorithm: random}}"},
		{
			name: "bad annotations", text: `metadata: {annotations: {veridict.dev/algorithm: Random, veridict.dev/zone-weights: "a=3,b=101"}}`,
			problems: []string{
				`metadata.annotations[veridict.dev/algorithm]: "Random" is not random or source-hash; it is ignored`,
				`metadata.annotations[veridict.dev/zone-weights]: "a=3,b=101": "b=101" is not zone=weight with a weight of 1 to 100; the annotation is ignored`,
			},
		},
		{
			name: "a zone twice", text: `metadata: {annotations: {veridict.dev/zone-weights: "a=3,a=1"}}`,
			problems: []string{`metadata.annotations[veridict.dev/zone-weights]: "a=3,a=1": zone a stands there twice; the annotation is ignored`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, problems := convert.FromService(decode[v1.Service](t, "{"+test.text+"}"))
			if diff := cmp.Diff(test.want, got.Traffic, options()); diff != "" {
				t.Errorf("traffic (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.problems, texts(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodePorts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, spec string
		want       []uint16 // of each port
		problems   []string
	}{
		{"type NodePort", "{type: NodePort, ports: [{port: 80, nodePort: 30000}]}", []uint16{30000}, nil},
		{"type LoadBalancer", "{type: LoadBalancer, ports: [{port: 80, nodePort: 30000}]}", []uint16{30000}, nil},
		{"a load balancer without", "{type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}", []uint16{0}, nil},
		{"left by a former type", "{type: ClusterIP, ports: [{port: 80, nodePort: 30000}]}", []uint16{0}, nil},
		{
			"one number for two protocols", "{type: NodePort, ports: [{port: 53, nodePort: 30000}, {port: 53, protocol: UDP, nodePort: 30000}]}",
			[]uint16{30000, 30000}, nil,
		},
		{
			"bad numbers cost themselves only", "{type: NodePort, ports: [{name: a, port: 80, nodePort: 70000}, {name: b, port: 81, nodePort: 30000}, {name: c, port: 82, nodePort: 30000}]}",
			[]uint16{0, 30000, 0},
			[]string{
				"spec.ports[0].nodePort: 70000 is not a port number (1 to 65535)",
				"spec.ports[2].nodePort: 30000/tcp is already a NodePort of this Service; the first one is used",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			service, problems := convert.FromService(&v1.Service{Spec: *decode[v1.ServiceSpec](t, test.spec)})
			var got []uint16
			for _, port := range service.Ports {
				got = append(got, port.NodePort)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("NodePorts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.problems, texts(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRangesOf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		ranges []netip.Prefix
		v4, v6 []netip.Prefix
	}{
		{"none", nil, nil, nil},
		{"of one family", prefixes("10.0.0.0/8"), prefixes("10.0.0.0/8"), nil},
		{"everybody", prefixes("0.0.0.0/0", "10.0.0.0/8", "fd00::/64"), nil, prefixes("fd00::/64")},
	}
	for _, test := range tests {
		traffic := convert.Traffic{SourceRanges: test.ranges}
		if diff := cmp.Diff(test.v4, traffic.RangesOf(dataplane.IPv4), options()); diff != "" {
			t.Errorf("%s: IPv4 (-want +got):\n%s", test.name, diff)
		}
		if diff := cmp.Diff(test.v6, traffic.RangesOf(dataplane.IPv6), options()); diff != "" {
			t.Errorf("%s: IPv6 (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestSliceWeight(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint16{"1": 1, "100": 100, "0": 0, "101": 0, "-1": 0, "x": 0, "": 0} {
		in := decode[discoveryv1.EndpointSlice](t, "{metadata: {labels: {kubernetes.io/service-name: a}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1], zone: z}]}")
		in.Annotations = map[string]string{convert.AnnotationWeight: text}
		got, problems := convert.FromEndpointSlice(in, "me")
		if got.Weight != want || (want == 0) != (len(problems) == 1) {
			t.Errorf("weight %q gives %d and %v, want %d", text, got.Weight, problems, want)
		}
		if got.Endpoints[0].Zone != "z" {
			t.Errorf("zone %q, want z", got.Endpoints[0].Zone)
		}
	}
}

func TestHostIPs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, addresses string
		want            []netip.Addr
	}{
		{"none", "[{type: Hostname, address: me}]", nil},
		{"internal before external", "[{type: ExternalIP, address: 192.0.2.1}, {type: InternalIP, address: 10.0.0.1}]", addrs("10.0.0.1")},
		{
			"one of each family", `[{type: InternalIP, address: "fd00::1"}, {type: InternalIP, address: "fd00::2"}, {type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: 10.0.0.2}]`,
			addrs("fd00::1", "10.0.0.1"),
		},
		{"the other family from outside", `[{type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: "2001:db8::1"}]`, addrs("10.0.0.1", "2001:db8::1")},
	}
	for _, test := range tests {
		node, _ := convert.FromNode(decode[v1.Node](t, "{status: {addresses: "+test.addresses+"}}"))
		if diff := cmp.Diff(test.want, node.HostIPs(), options()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

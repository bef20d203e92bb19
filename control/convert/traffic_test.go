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
		name, object string
		want         *convert.Traffic
		nodePort     uint16
		problems     []string
	}{
		{name: "nothing", object: "spec: {internalTrafficPolicy: Cluster, sessionAffinity: None}"},
		{
			name:   "policy Local of an internal Service concerns its cluster IP only",
			object: "spec: {internalTrafficPolicy: Local, externalTrafficPolicy: Local}",
			want:   &convert.Traffic{InternalLocal: true},
		},
		{
			name:   "external IPs, sorted, each once",
			object: "spec: {externalTrafficPolicy: Local, externalIPs: [5.6.7.8, 001.02.3.4, 'fd00::1', 5.6.7.8]}",
			want:   &convert.Traffic{ExternalIPs: addrs("1.2.3.4", "5.6.7.8", "fd00::1"), ExternalLocal: true},
		},
		{
			name:     "bad external IPs",
			object:   "spec: {externalIPs: [127.0.0.1, x, 0.0.0.0, 1.2.3.4]}",
			want:     &convert.Traffic{ExternalIPs: addrs("1.2.3.4")},
			problems: []string{"spec.externalIPs[0]: 127.0.0.1: unspecified, loopback and multicast addresses cannot be served", `spec.externalIPs[1]: "x" is not an IP address`, "spec.externalIPs[2]: 0.0.0.0: unspecified, loopback and multicast addresses cannot be served"},
		},
		{
			name:     "NodePort, its port only",
			object:   "spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}], healthCheckNodePort: 31000, loadBalancerSourceRanges: [10.0.0.0/8]}",
			nodePort: 30080,
		},
		{
			name:   "a NodePort of a Service that has none",
			object: "spec: {type: ClusterIP, ports: [{port: 80, nodePort: 30080}]}",
		},
		{
			name: "load balancer",
			object: `
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 31000
  loadBalancerSourceRanges: [" 203.0.113.0/24", 10.0.0.0/8, "fd00::/8 "]
  ports: [{port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 5.6.7.8}, {ip: 1.2.3.4, ipMode: VIP}, {ip: 9.9.9.9, ipMode: Proxy}, {hostname: x}]}}`,
			want: &convert.Traffic{
				LoadBalancerIPs: addrs("1.2.3.4", "5.6.7.8"), ExternalLocal: true, HealthCheckPort: 31000,
				SourceRanges: prefixes("10.0.0.0/8", "203.0.113.0/24", "fd00::/8"),
			},
			nodePort: 30080,
		},
		{
			name:   "no health check without policy Local",
			object: "spec: {type: LoadBalancer, healthCheckNodePort: 31000}",
		},
		{
			name:   "the status of before outlives the type",
			object: "{spec: {type: ClusterIP, loadBalancerSourceRanges: [10.0.0.0/8]}, status: {loadBalancer: {ingress: [{ip: 5.6.7.8}]}}}",
			want:   &convert.Traffic{LoadBalancerIPs: addrs("5.6.7.8"), SourceRanges: prefixes("10.0.0.0/8")},
		},
		{
			name:   "affinity by default",
			object: "spec: {sessionAffinity: ClientIP}",
			want:   &convert.Traffic{AffinitySeconds: 10800},
		},
		{
			name:   "affinity with a timeout",
			object: "spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}}",
			want:   &convert.Traffic{AffinitySeconds: 5},
		},
		{
			name:     "affinity with a bad timeout, unknown policies",
			object:   "spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}, internalTrafficPolicy: x}",
			want:     &convert.Traffic{AffinitySeconds: 10800},
			problems: []string{`spec.internalTrafficPolicy: "x" is not Cluster or Local; Cluster is used`, "spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401 is not between 1 and 86400; 10800 is used"},
		},
		{
			name:   "annotations",
			object: "metadata: {annotations: {veridict.dev/algorithm: source-hash, veridict.dev/zone-weights: 'b=1, a=100'}}",
			want: &convert.Traffic{
				Algorithm: dataplane.SourceHash, ZoneWeights: []convert.ZoneWeight{{Zone: "a", Weight: 100}, {Zone: "b", Weight: 1}},
			},
		},
		{
			name:   "annotations that are ignored",
			object: "metadata: {annotations: {veridict.dev/algorithm: maglev, veridict.dev/zone-weights: 'a=3,b=0'}}",
			problems: []string{
				`metadata.annotations[veridict.dev/algorithm]: "maglev" is not random or source-hash; it is ignored`,
				`metadata.annotations[veridict.dev/zone-weights]: "a=3,b=0": "b=0" is not zone=weight with a weight of 1 to 100; the annotation is ignored`,
			},
		},
		{
			name:     "a zone twice",
			object:   "metadata: {annotations: {veridict.dev/zone-weights: 'a=3,a=4'}}",
			problems: []string{`metadata.annotations[veridict.dev/zone-weights]: "a=3,a=4": zone a stands there twice; the annotation is ignored`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := decode[v1.Service](t, test.object)
			in.Name, in.Spec.ClusterIP = "web", "172.30.0.1"
			got, problems := convert.FromService(in)
			if diff := cmp.Diff(test.want, got.Traffic, options()); diff != "" {
				t.Errorf("traffic (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.problems, texts(problems), options()); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if len(got.Ports) > 0 && got.Ports[0].NodePort != test.nodePort {
				t.Errorf("NodePort %d, want %d", got.Ports[0].NodePort, test.nodePort)
			}
		})
	}
}

func TestRangesOf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		in     []netip.Prefix
		v4, v6 []netip.Prefix
	}{
		{name: "none"},
		{name: "one family", in: prefixes("10.0.0.0/8"), v4: prefixes("10.0.0.0/8")},
		{name: "all of a family", in: prefixes("10.0.0.0/8", "0.0.0.0/0", "fd00::/8"), v6: prefixes("fd00::/8")},
	}
	for _, test := range tests {
		traffic := convert.Traffic{SourceRanges: test.in}
		for family, want := range map[dataplane.Family][]netip.Prefix{dataplane.IPv4: test.v4, dataplane.IPv6: test.v6} {
			if diff := cmp.Diff(want, traffic.RangesOf(family), options()); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", test.name, family, diff)
			}
		}
	}
}

func TestSliceWeightAndZone(t *testing.T) {
	t.Parallel()
	in := decode[discoveryv1.EndpointSlice](t, `
metadata: {name: s, labels: {kubernetes.io/service-name: web}, annotations: {veridict.dev/weight: "7"}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1], zone: a}]`)
	got, problems := convert.FromEndpointSlice(in, "")
	if got.Weight != 7 || got.Endpoints[0].Zone != "a" || len(problems) > 0 {
		t.Errorf("slice %+v, problems %v", got, problems)
	}
	in.Annotations[convert.AnnotationWeight] = "101"
	got, problems = convert.FromEndpointSlice(in, "")
	want := []string{`metadata.annotations[veridict.dev/weight]: "101" is not a weight (1 to 100); it is ignored`}
	if diff := cmp.Diff(want, texts(problems)); diff != "" || got.Weight != 0 {
		t.Errorf("weight %d, problems (-want +got):\n%s", got.Weight, diff)
	}
}

// A mistake in a list of addresses takes none of those away that were served.
func TestKeepServedTraffic(t *testing.T) {
	t.Parallel()
	before, _ := convert.FromService(decode[v1.Service](t, "spec: {clusterIP: 172.30.0.1, externalIPs: [1.2.3.4, 5.6.7.8]}"))
	now, mistakes := convert.FromService(decode[v1.Service](t, "spec: {clusterIP: 172.30.0.1, externalIPs: [1.2.3.4, 5.6.7.x]}"))
	kept := convert.KeepServed(now, before, mistakes).(*convert.Service)
	if diff := cmp.Diff(addrs("1.2.3.4", "5.6.7.8"), kept.Traffic.ExternalIPs, options()); diff != "" {
		t.Errorf("external IPs (-want +got):\n%s", diff)
	}
}

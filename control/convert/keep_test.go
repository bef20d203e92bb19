// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/veridict/veridict/control/convert"
)

func TestKeepServed(t *testing.T) {
	t.Parallel()
	service := func(text string) (convert.Object, []convert.Problem) {
		return convert.FromService(decode[v1.Service](t, "{metadata: {name: a}, spec: "+text+"}"))
	}
	balancer := func(text string) (convert.Object, []convert.Problem) {
		return convert.FromService(decode[v1.Service](t, "{metadata: {name: a}, "+text+"}"))
	}
	slice := func(text string) (convert.Object, []convert.Problem) {
		return convert.FromEndpointSlice(decode[discoveryv1.EndpointSlice](t,
			"{metadata: {name: a, labels: {kubernetes.io/service-name: a}}, "+text+"}"), "me")
	}
	node := func(text string) (convert.Object, []convert.Problem) {
		return convert.FromNode(decode[v1.Node](t, "{metadata: {name: a}, "+text+"}"))
	}
	cidr := func(text string) (convert.Object, []convert.Problem) {
		return convert.FromServiceCIDR(decode[networkingv1.ServiceCIDR](t, "{metadata: {name: a}, spec: {cidrs: "+text+"}}"))
	}
	tests := []struct {
		name    string
		convert func(text string) (convert.Object, []convert.Problem)
		// want is equal to what the conversion of its text gives.
		before, now, want string
	}{
		{"a bad address", service, "{clusterIP: 172.30.0.1, ports: [{port: 80}]}", "{clusterIP: 172.30.0.256, ports: [{port: 81}]}", "{clusterIP: 172.30.0.1, ports: [{port: 81}]}"},
		{
			"a bad address of one family", service, `{clusterIPs: [172.30.0.1, "fd00::1"]}`, `{clusterIPs: [172.30.0.2, "fd00::x"]}`,
			`{clusterIPs: [172.30.0.2, "fd00::1"]}`,
		},
		{"a bad port", service, "{clusterIP: 172.30.0.1, ports: [{port: 80}]}", "{clusterIP: 172.30.0.1, ports: [{port: 0}]}", "{clusterIP: 172.30.0.1, ports: [{port: 80}]}"},
		{
			"a bad port beside good ones", service, "{ports: [{name: a, port: 80}, {name: b, port: 443}]}",
			"{ports: [{name: a, port: 81}, {name: b, port: 0}, {name: c, port: 82}]}",
			"{ports: [{name: a, port: 81}, {name: c, port: 82}, {name: b, port: 443}]}",
		},
		{
			"a mistake elsewhere restores nothing", service, `{clusterIPs: [172.30.0.1, "fd00::1"], ports: [{port: 80}]}`,
			"{clusterIPs: [172.30.0.1], ports: [{port: 0}]}", "{clusterIPs: [172.30.0.1], ports: [{port: 80}]}",
		},
		{
			"a bad external IP and a bad address of the load balancer", balancer,
			"spec: {type: LoadBalancer, externalIPs: [192.0.2.1, 192.0.2.2]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}",
			"spec: {type: LoadBalancer, externalIPs: [192.0.2.3, x]}, status: {loadBalancer: {ingress: [{ip: x}]}}",
			"spec: {type: LoadBalancer, externalIPs: [192.0.2.1, 192.0.2.2, 192.0.2.3]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}",
		},
		{
			"a bad source range opens no family", service, `{type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8, "fd00::/64"]}`,
			`{type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/80, "fd01::/64"]}`,
			`{type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8, "fd00::/64", "fd01::/64"]}`,
		},
		{
			"bad policies", service, "{type: LoadBalancer, internalTrafficPolicy: Local, externalTrafficPolicy: Local, healthCheckNodePort: 31000}",
			"{type: LoadBalancer, internalTrafficPolicy: local, externalTrafficPolicy: local, healthCheckNodePort: 31000}",
			"{type: LoadBalancer, internalTrafficPolicy: Local, externalTrafficPolicy: Local, healthCheckNodePort: 31000}",
		},
		{
			"a bad affinity", service, "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}}",
			"{sessionAffinity: clientIP}", "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}}",
		},
		{
			"a first affinity with a bad timeout", service, "{}",
			"{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}", "{sessionAffinity: ClientIP}",
		},
		{
			"a bad health check port", service, "{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000}",
			"{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 310000}",
			"{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000}",
		},
		{
			"a bad NodePort", service, "{type: NodePort, ports: [{name: a, port: 80, nodePort: 30000}, {name: b, port: 81, nodePort: 30001}]}",
			"{type: NodePort, ports: [{name: a, port: 80, nodePort: 300000}, {name: c, port: 82, nodePort: 30001}]}",
			"{type: NodePort, ports: [{name: a, port: 80, nodePort: 30000}, {name: c, port: 82, nodePort: 30001}, {name: b, port: 81}]}",
		},
		{"one bad endpoint", slice, good("10.0.0.1"), good("10.0.0.2"), good("10.0.0.2")},
		{
			"only bad endpoints", slice, good("10.0.0.1"),
			"addressType: IPv4, endpoints: [{addresses: [10.0.0.256]}], ports: [{port: 1}]", good("10.0.0.1"),
		},
		{"a bad address type", slice, good("10.0.0.1"), "addressType: ipv4", good("10.0.0.1")},
		{"only bad pod CIDRs", node, "spec: {podCIDRs: [10.0.0.0/8]}", "spec: {podCIDRs: [10.0.0.0/80]}", "spec: {podCIDRs: [10.0.0.0/8]}"},
		{"only bad CIDRs", cidr, "[10.0.0.0/8]", "[10.0.0.0/80]", "[10.0.0.0/8]"},
		{"a bad CIDR beside a good one", cidr, "[10.0.0.0/8]", `[10.0.0.0/80, "fd00::/64"]`, `["fd00::/64"]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before, _ := test.convert(test.before)
			now, mistakes := test.convert(test.now)
			want, _ := test.convert(test.want)
			if len(mistakes) == 0 {
				t.Fatal("there are no mistakes")
			}
			if diff := cmp.Diff(want, convert.KeepServed(now, before, mistakes), options()); diff != "" {
				t.Errorf("object (-want +got):\n%s", diff)
			}
		})
	}
}

// good is a slice of one port with an endpoint, and one more that is none.
func good(addresses string) string {
	return "addressType: IPv4, ports: [{port: 1}], endpoints: [{addresses: [" + addresses + "]}, {addresses: [x]}]"
}

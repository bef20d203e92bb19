// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/veridict/veridict/control/convert"
)

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

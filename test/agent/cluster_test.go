// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
)

// cluster is a node, which is the namespace of the process, with a pod for all clients
// and one for all endpoints. All tests share it, and it vanishes with the process.
type cluster struct {
	clients, endpoints *testbed.Pod
	// network keeps the rest of it alive.
	network *testbed.Network
}

// The pods' addresses.
var (
	clients4   = netip.MustParsePrefix("10.244.64.0/18")
	endpoints4 = netip.MustParsePrefix("10.244.128.0/17")
)

var theCluster = sync.OnceValues(func() (*cluster, error) {
	ns, err := testbed.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	network, err := testbed.NewNetwork(ns, testbed.DefaultPlan())
	if err != nil {
		return nil, err
	}
	c := &cluster{network: network}
	for _, p := range []struct {
		pod        **testbed.Pod
		name, addr string
		more       netip.Prefix
	}{
		{&c.clients, "clients", "10.244.1.1", clients4},
		{&c.endpoints, "endpoints", "10.244.2.1", endpoints4},
	} {
		*p.pod, err = network.AddPod(context.Background(), testbed.PodOptions{
			Name: p.name, Addrs: []netip.Addr{netip.MustParseAddr(p.addr)}, Prefixes: []netip.Prefix{p.more},
		})
		if err != nil {
			return nil, err
		}
	}
	return c, network.AddUplink(context.Background())
})

func sharedCluster(t testing.TB) *cluster {
	t.Helper()
	c, err := theCluster()
	if err != nil {
		t.Fatal("set up the cluster:", err)
	}
	return c
}

// service is a Service with one port.
type service struct {
	name      string
	vip       dataplane.VIP
	endpoints []netip.AddrPort
}

// newService returns the n-th Service of a test. Its endpoints have the given port.
func newService(name string, n int, protocol dataplane.Protocol, port uint16, endpoints int) *service {
	s := &service{name: name, vip: dataplane.VIP{
		Addr: netip.AddrFrom4([4]byte{10, 96, 1, byte(n)}), Protocol: protocol, Port: 80,
	}}
	for i := range endpoints {
		s.endpoints = append(s.endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 128 + byte(n), byte(i + 1)}), port))
	}
	return s
}

// addr is the VIP without the protocol.
func (s *service) addr() netip.AddrPort { return netip.AddrPortFrom(s.vip.Addr, s.vip.Port) }

// serve starts the endpoints of a Service.
func (c *cluster) serve(t testing.TB, s *service) {
	t.Helper()
	for _, addr := range s.endpoints {
		server, err := c.endpoints.Serve(s.vip.Protocol, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
	}
}

type object map[string]any

// write writes the manifests of Services, each in one file that is replaced at once.
func (n *node) write(t testing.TB, services ...*service) {
	t.Helper()
	for _, s := range services {
		path := filepath.Join(n.manifests, s.name+".json")
		text, err := json.Marshal(s.objects())
		must(t, "write "+s.name, err)
		must(t, "write "+s.name, os.WriteFile(path+".new", text, 0o600))
		must(t, "write "+s.name, os.Rename(path+".new", path))
	}
}

func (s *service) objects() object {
	protocol := strings.ToUpper(s.vip.Protocol.String())
	target := 80
	endpoints := []object{}
	for _, ep := range s.endpoints {
		target = int(ep.Port())
		endpoints = append(endpoints, object{"addresses": []string{ep.Addr().String()}, "nodeName": "node", "conditions": object{"ready": true}})
	}
	vip := s.vip.Addr.String()
	return object{"apiVersion": "v1", "kind": "List", "items": []object{
		{
			"apiVersion": "v1", "kind": "Service", "metadata": object{"namespace": "shop", "name": s.name},
			"spec": object{
				"clusterIP": vip, "clusterIPs": []string{vip}, "ipFamilies": []string{"IPv4"},
				"ports": []object{{"protocol": protocol, "port": s.vip.Port, "targetPort": target}},
			},
		},
		{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata": object{
				"namespace": "shop", "name": s.name, "labels": object{"kubernetes.io/service-name": s.name},
			},
			"addressType": "IPv4", "ports": []object{{"name": "", "protocol": protocol, "port": target}}, "endpoints": endpoints,
		},
	}}
}

// nft runs a script of the nft program and returns what it prints.
func nft(t testing.TB, script string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "nft", "-f", "-")
	cmd.Stdin = bytes.NewBufferString(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", script, err, out)
	}
	return string(out)
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// must fails the test at an error.
func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// sortedLines returns the lines of a text without blanks around them, sorted.
func sortedLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.Trim(lines[i], " \t{}")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
)

// cluster is a node, which is the namespace of the process, with a client pod
// and a pod that has all endpoints. All tests share it, and it vanishes with the
// process.
type cluster struct {
	node              *testbed.Namespace
	client, endpoints *testbed.Pod
	// outsider is no pod of this cluster, though it is made like one.
	outsider *testbed.Pod
}

// Addresses of the cluster. On the node, the VIPs of localVIPs are addresses of
// its own that nobody listens on: a connection that is not translated is refused
// at once. The sources are addresses of the node to connect from.
var (
	endpoints4 = netip.MustParsePrefix("10.244.128.0/17")
	endpoints6 = netip.MustParsePrefix("fd00:10:244:8000::/64")
	localVIPs4 = netip.MustParsePrefix("10.97.0.0/16")
	localVIPs6 = netip.MustParsePrefix("fd00:10:97::/112")
	sources4   = netip.MustParsePrefix("10.251.0.0/16")
	sources6   = netip.MustParsePrefix("fd00:10:251::/112")
)

var theCluster = sync.OnceValues(func() (*cluster, error) {
	node, err := testbed.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	network, err := testbed.NewNetwork(node, testbed.DefaultPlan())
	if err != nil {
		return nil, err
	}
	c := &cluster{node: node}
	for _, p := range []struct {
		pod     **testbed.Pod
		options testbed.PodOptions
	}{
		{&c.client, podOptions("client", "10.244.1.1", "fd00:10:244:1::1")},
		{&c.endpoints, podOptions("endpoints", "10.244.2.1", "fd00:10:244:2::1", endpoints4, endpoints6)},
		{&c.outsider, podOptions("outsider", "10.250.1.1", "fd00:10:250:1::1")},
	} {
		if *p.pod, err = network.AddPod(context.Background(), p.options); err != nil {
			return nil, err
		}
	}
	for _, prefix := range []netip.Prefix{localVIPs4, localVIPs6, sources4, sources6} {
		if err := addLocal(node, prefix); err != nil {
			return nil, err
		}
	}
	return c, addUplink(node)
})

// addUplink gives the node a way out for cluster IPs, as a default route does, so
// that it is rules that refuse them. Nothing is behind it.
func addUplink(node *testbed.Namespace) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "outside"}
	if err := node.Netlink().LinkAdd(link); err != nil {
		return fmt.Errorf("add uplink: %w", err)
	}
	outside, err := node.Netlink().LinkByName(link.PeerName)
	if err != nil {
		return fmt.Errorf("find the end of uplink: %w", err)
	}
	for _, end := range []netlink.Link{link, outside} {
		if err := node.Netlink().LinkSetUp(end); err != nil {
			return fmt.Errorf("bring up uplink: %w", err)
		}
	}
	for _, cidr := range testbed.DefaultPlan().ServiceCIDRs {
		if err := node.Netlink().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(cidr)}); err != nil {
			return fmt.Errorf("add route %s: %w", cidr, err)
		}
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

func podOptions(name, addr4, addr6 string, prefixes ...netip.Prefix) testbed.PodOptions {
	return testbed.PodOptions{
		Name: name, Addrs: []netip.Addr{netip.MustParseAddr(addr4), netip.MustParseAddr(addr6)}, Prefixes: prefixes,
	}
}

func sharedCluster(t testing.TB) *cluster {
	t.Helper()
	c, err := theCluster()
	if err != nil {
		t.Fatal("set up the cluster:", err)
	}
	return c
}

// addLocal makes all addresses of the prefix the namespace's own.
func addLocal(ns *testbed.Namespace, prefix netip.Prefix) error {
	lo, err := ns.Netlink().LinkByName("lo")
	if err != nil {
		return err
	}
	err = ns.Netlink().RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		Dst: ipNet(prefix),
	})
	if err != nil {
		return fmt.Errorf("add local route %s: %w", prefix, err)
	}
	return nil
}

// clusterSettings are the settings that suit the cluster.
func clusterSettings() dataplane.Settings {
	plan := testbed.DefaultPlan()
	return dataplane.Settings{
		ServiceCIDRs:  plan.ServiceCIDRs,
		LocalDetector: dataplane.LocalDetector{CIDRs: plan.PodCIDRs},
	}
}

// serve starts an endpoint in the endpoints' pod.
func (c *cluster) serve(t testing.TB, protocol dataplane.Protocol, addrs ...netip.AddrPort) {
	t.Helper()
	for _, addr := range addrs {
		server, err := c.endpoints.Serve(protocol, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/veridict/veridict/compare/testbed"
)

// clientCount is the number of client pods.
const clientCount = 3

// cluster is the node, on which the proxy is to run, with running pods.
type cluster struct {
	node    *testbed.Namespace
	network *testbed.Network
	clients []*testbed.Namespace
	servers map[listener]*testbed.Server
	pods    int
}

// buildCluster makes the pods; the node is the process's own namespace. Advance
// is called for each pod. The caller closes the cluster, also after an error.
func buildCluster(ctx context.Context, pods map[string][]listener, advance func()) (*cluster, error) {
	node, err := testbed.CurrentNamespace()
	if err != nil {
		return &cluster{}, err
	}
	c := &cluster{node: node, servers: map[listener]*testbed.Server{}}
	if c.network, err = testbed.NewNetwork(node, testbed.DefaultPlan()); err != nil {
		return c, err
	}
	if err := c.network.AddUplink(ctx); err != nil {
		return c, err
	}
	for i := range clientCount {
		client, err := c.addPod(ctx, fmt.Sprintf("client-%d", i+1), clientAddrs(i))
		if err != nil {
			return c, err
		}
		c.clients = append(c.clients, client.Namespace)
		advance()
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if err := c.addEndpoints(ctx, name, pods[name]); err != nil {
			return c, err
		}
		advance()
	}
	return c, nil
}

func (c *cluster) addPod(ctx context.Context, name string, addrs []netip.Addr) (*testbed.Pod, error) {
	pod, err := c.network.AddPod(ctx, testbed.PodOptions{Name: name, Addrs: addrs})
	if err != nil {
		return nil, err
	}
	c.pods++
	return pod, nil
}

// addEndpoints makes a pod that listens on all its ports.
func (c *cluster) addEndpoints(ctx context.Context, name string, listeners []listener) error {
	var addrs []netip.Addr
	for _, listener := range listeners {
		addrs = append(addrs, listener.addr.Addr())
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	pod, err := c.addPod(ctx, name, slices.Compact(addrs))
	if err != nil {
		return err
	}
	for _, listener := range listeners {
		server, err := pod.Serve(listener.protocol, listener.addr)
		if err != nil {
			return fmt.Errorf("pod %s: %w", name, err)
		}
		c.servers[listener] = server
	}
	return nil
}

// close ends the servers before it gives up their namespaces.
func (c *cluster) close() error {
	var errs []error
	for _, server := range c.servers {
		errs = append(errs, server.Close())
	}
	if c.network != nil {
		errs = append(errs, c.network.Close())
	}
	if c.node != nil {
		errs = append(errs, c.node.Close())
	}
	return errors.Join(errs...)
}

// clientAddrs are outside of the ranges that deploy/examples uses.
func clientAddrs(i int) []netip.Addr {
	last := byte(i + 1)
	v6 := netip.MustParseAddr("fd00:10:244:ff::").As16()
	v6[15] = last
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 255, last}), netip.AddrFrom16(v6)}
}

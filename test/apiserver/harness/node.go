// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
)

// NodeName is the name of the Node.
const NodeName = "node"

// Port is what all endpoints listen on.
const Port = 8080

// PodCIDR is where clients and endpoints have their addresses.
const PodCIDR = "10.244.0.0/16"

// Node is the namespace of the process with a pod for all clients and one for all
// endpoints.
type Node struct {
	network *testbed.Network
	// Clients is where connections come from.
	Clients, endpoints *testbed.Pod
	server             *testbed.Server
}

// NewNode makes the pods. Every address of [Endpoint] answers.
func NewNode(ctx context.Context) (*Node, error) {
	ns, err := testbed.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	n := &Node{}
	if n.network, err = testbed.NewNetwork(ns, testbed.DefaultPlan()); err != nil {
		return nil, err
	}
	if n.Clients, err = n.network.AddPod(ctx, testbed.PodOptions{Name: "clients", Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.1")}}); err != nil {
		return nil, err
	}
	n.endpoints, err = n.network.AddPod(ctx, testbed.PodOptions{
		Name: "endpoints", Addrs: []netip.Addr{netip.MustParseAddr("10.244.2.1")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.128.0/17")},
	})
	if err != nil {
		return nil, err
	}
	if err := n.network.AddUplink(ctx); err != nil {
		return nil, err
	}
	n.server, err = n.endpoints.Serve(dataplane.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), Port))
	return n, err
}

// MaxEndpoints is the number of addresses that [Endpoint] has.
const MaxEndpoints = 1<<15 - 2

// Endpoint returns the i-th address of the endpoints' pod, from 0 on.
func Endpoint(i int) netip.Addr {
	var bytes [4]byte
	binary.BigEndian.PutUint32(bytes[:], 10<<24|244<<16|128<<8+uint32(i%MaxEndpoints)+1)
	return netip.AddrFrom4(bytes)
}

const (
	// askTimeout is for connections that nobody answers.
	askTimeout = 2 * time.Second
	// tryTimeout is that of a try which is followed by another one at once: a SYN that
	// was lost before there were rules would be sent again after a second only.
	tryTimeout = 50 * time.Millisecond
)

// Ask opens a connection from the clients' pod and returns which endpoint has answered.
func (n *Node) Ask(ctx context.Context, vip netip.Addr) (netip.Addr, error) {
	var answer testbed.Answer
	err := n.Clients.Do(func() (err error) {
		answer, err = ask(ctx, vip, askTimeout)
		return err
	})
	return answer.Endpoint.Addr(), err
}

func ask(ctx context.Context, vip netip.Addr, timeout time.Duration) (testbed.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return testbed.Ask(ctx, dataplane.VIP{Addr: vip, Protocol: dataplane.TCP, Port: 80})
}

// Pauses between two tries of what does not answer yet.
const (
	shortPause = 200 * time.Microsecond
	longPause  = 5 * time.Millisecond
)

// Await asks each VIP until one of its own endpoints has answered, and returns when
// the last did.
func (n *Node) Await(ctx context.Context, wanted map[netip.Addr][]netip.Addr) (time.Time, error) {
	return n.await(ctx, wanted, shortPause)
}

func (n *Node) await(ctx context.Context, wanted map[netip.Addr][]netip.Addr, pause time.Duration) (time.Time, error) {
	var last time.Time
	err := n.Clients.Do(func() error {
		left := make(map[netip.Addr]map[netip.Addr]bool, len(wanted))
		for vip, endpoints := range wanted {
			left[vip] = map[netip.Addr]bool{}
			for _, endpoint := range endpoints {
				left[vip][endpoint] = true
			}
		}
		var lastErr error
		again := time.NewTicker(pause)
		defer again.Stop()
		for len(left) > 0 {
			if lastErr != nil {
				<-again.C
			}
			for vip, endpoints := range left {
				if ctx.Err() != nil {
					return fmt.Errorf("%d of %d Services are not answered by endpoints of theirs, as %s: %w", len(left), len(wanted), vip, lastErr)
				}
				answer, err := ask(ctx, vip, tryTimeout)
				if err == nil && !endpoints[answer.Endpoint.Addr()] {
					err = fmt.Errorf("answered by %s", answer.Endpoint)
				}
				if err != nil {
					lastErr = err
					// The others are no better, most likely.
					break
				}
				last = time.Now()
				delete(left, vip)
			}
		}
		return nil
	})
	return last, err
}

// sample is how many Services are asked again and again while a proxy starts.
const sample = 100

// AwaitStart asks some of many VIPs until all of them are answered by endpoints of
// theirs, and returns when. It is an error if one of the others is not at that moment.
// Asking takes little of the CPU time that the start needs.
func (n *Node) AwaitStart(ctx context.Context, wanted map[netip.Addr][]netip.Addr) (time.Time, error) {
	vips := slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare)
	some := map[netip.Addr][]netip.Addr{}
	for i := range min(sample, len(vips)) {
		vip := vips[i*len(vips)/sample%len(vips)]
		some[vip] = wanted[vip]
	}
	at, err := n.await(ctx, some, longPause)
	if err != nil {
		return at, err
	}
	return at, n.Clients.Do(func() error {
		for vip, endpoints := range wanted {
			answer, err := ask(ctx, vip, askTimeout)
			if err == nil && !slices.Contains(endpoints, answer.Endpoint.Addr()) {
				err = fmt.Errorf("answered by %s", answer.Endpoint)
			}
			if err != nil {
				return fmt.Errorf("%s, after %d others were right: %w", vip, len(some), err)
			}
		}
		return nil
	})
}

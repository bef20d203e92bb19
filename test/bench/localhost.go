// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/bpf/sockets"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/localhost"
	"github.com/veridict/veridict/dataplane/nftables"
)

const (
	localNodePort = 30080
	// localEndpoints are several so that the proxy does not run out of source ports.
	localEndpoints = 8
	localWorkers   = 4
	rateTime       = time.Second
	bulkBytes      = 1 << 29
)

// localhostNodePorts compares the ways to serve a NodePort on a loopback address: the
// proxy in user space, which runs in this process like the clients, and programs in
// the kernel. The same by the node's own address is the best that there can be.
func (b *bench) localhostNodePorts(ctx context.Context, r *report) (err error) {
	l, err := b.newLocalhostRig(ctx)
	if l != nil {
		defer func() { err = errors.Join(err, l.close()) }()
	}
	if err != nil {
		return err
	}
	ways := []struct {
		name     string
		targets  []netip.Addr
		loopback bool
	}{
		{"proxy in user space", nil, true},
		{"programs in the kernel", testbed.DefaultPlan().NodeAddrs, true},
		{"the node's own address", nil, false},
	}
	rates, speeds, costs := make([][]float64, len(ways)), make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range b.options.rounds {
		b.progress("localhost NodePorts, round %d of %d", round+1, b.options.rounds)
		for i, way := range ways {
			if err := l.lead(ctx, way.targets); err != nil {
				return err
			}
			to := netip.AddrPortFrom(testbed.DefaultPlan().NodeAddrs[0], localNodePort)
			if way.loopback {
				to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), localNodePort)
			}
			rate, err := connectionRate(ctx, to)
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			speed, cost, err := bulkSpeed(ctx, to)
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			rates[i], speeds[i], costs[i] = append(rates[i], rate), append(speeds[i], speed), append(costs[i], cost)
		}
	}
	subject := fmt.Sprintf("NodePort on 127.0.0.1, connections with one exchange, %d at a time", localWorkers)
	for i, way := range ways {
		r.note(subject, way.name, median(rates[i]), "connections/s")
	}
	r.atLeast(subject, "programs, times as many as the proxy", ratio(rates[1], rates[0]), "", 1)
	subject = fmt.Sprintf("NodePort on 127.0.0.1, one connection that sends %d MiB", bulkBytes>>20)
	for i, way := range ways {
		r.note(subject, way.name, median(speeds[i]), "MiB/s")
	}
	for i, way := range ways {
		r.note(subject, way.name+", CPU time of clients and endpoints too", median(costs[i]), "ms/GiB")
	}
	r.atMost(subject, "programs, times the CPU time of the proxy", ratio(costs[1], costs[0]), "", 1)
	return nil
}

// localhostRig is a node with one NodePort, whose endpoints are in a pod.
type localhostRig struct {
	state    dataplane.State
	syncer   *localhost.Syncer
	closings []func() error
}

func (l *localhostRig) onClose(f func() error) { l.closings = append(l.closings, f) }

func (l *localhostRig) close() error {
	var errs []error
	for _, closing := range slices.Backward(l.closings) {
		errs = append(errs, closing())
	}
	return errors.Join(errs...)
}

// newLocalhostRig returns what has to be closed also with an error.
func (b *bench) newLocalhostRig(ctx context.Context) (*localhostRig, error) {
	l := &localhostRig{}
	if err := flush(ctx); err != nil {
		return nil, err
	}
	node, err := testbed.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	l.onClose(node.Close)
	network, err := testbed.NewNetwork(node, testbed.DefaultPlan())
	if err != nil {
		return l, err
	}
	l.onClose(network.Close)
	if err := l.addEndpoints(ctx, network); err != nil {
		return l, err
	}
	group, err := testbed.EnterCgroup()
	if err != nil {
		return l, err
	}
	l.onClose(group.Close)
	programs, err := sockets.Open(sockets.Options{CgroupPath: group.Path, Logger: b.log})
	if err != nil {
		return l, err
	}
	l.onClose(programs.Close)
	rules, err := nftables.New(ctx, nftables.Options{Logger: b.log})
	if err != nil {
		return l, err
	}
	l.onClose(rules.Close)
	l.syncer = localhost.New(rules, localhost.Options{Logger: b.log, Redirector: programs})
	l.onClose(l.syncer.Close)
	_, err = l.syncer.Reset(ctx, l.state)
	return l, err
}

// addEndpoints fills in the state.
func (l *localhostRig) addEndpoints(ctx context.Context, network *testbed.Network) error {
	prefix := netip.MustParsePrefix("10.244.3.0/24")
	pod, err := network.AddPod(ctx, testbed.PodOptions{
		Name: "endpoints", Addrs: []netip.Addr{netip.MustParseAddr("10.244.2.1")}, Prefixes: []netip.Prefix{prefix},
	})
	if err != nil {
		return err
	}
	sp := servicePort(0, 0)
	sp.External = &dataplane.External{NodePort: localNodePort}
	addr := prefix.Addr()
	for range localEndpoints {
		addr = addr.Next()
		endpoint := netip.AddrPortFrom(addr, 8080)
		var listener net.Listener
		err := pod.Do(func() (err error) {
			listener, err = new(net.ListenConfig).Listen(ctx, "tcp", endpoint.String())
			return err
		})
		if err != nil {
			return fmt.Errorf("serve on %s: %w", endpoint, err)
		}
		l.onClose(listener.Close)
		go swallow(listener)
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: endpoint})
	}
	plan := testbed.DefaultPlan()
	l.state = dataplane.State{
		Settings: dataplane.Settings{
			ServiceCIDRs: plan.ServiceCIDRs, LocalDetector: dataplane.LocalDetector{CIDRs: plan.PodCIDRs},
			NodePortAddresses: plan.NodeAddrs, Localhost: dataplane.LocalhostProxied,
		},
		ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{sp.Key: sp},
	}
	return nil
}

// lead has connections led to one of the addresses; without any the proxy serves them.
func (l *localhostRig) lead(ctx context.Context, targets []netip.Addr) error {
	settings := l.state.Settings
	settings.LocalhostTargets = targets
	_, err := l.syncer.Sync(ctx, dataplane.Update{Settings: &settings})
	return err
}

// swallow reads from each connection as many bytes as its first eight say, and answers
// with one.
func swallow(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			var size [8]byte
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint64(size[:]))); err == nil {
				_, _ = conn.Write(size[:1])
			}
		}()
	}
}

// exchange opens a connection, sends so many bytes and waits for the answer.
func exchange(ctx context.Context, to netip.AddrPort, size int) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// The source port is free at once.
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	if err := binary.Write(conn, binary.BigEndian, uint64(size)); err != nil {
		return err
	}
	chunk := make([]byte, min(size, 1<<18))
	for sent := 0; sent < size; sent += len(chunk) {
		if _, err := conn.Write(chunk); err != nil {
			return err
		}
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// connectionRate returns connections per second.
func connectionRate(ctx context.Context, to netip.AddrPort) (float64, error) {
	var group errgroup.Group
	var opened atomic.Int64
	start := time.Now()
	for range localWorkers {
		group.Go(func() error {
			for time.Since(start) < rateTime {
				if err := exchange(ctx, to, 1); err != nil {
					return err
				}
				opened.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return float64(opened.Load()) / time.Since(start).Seconds(), err
}

// bulkSpeed returns MiB per second and the CPU time of this process in ms per GiB.
func bulkSpeed(ctx context.Context, to netip.AddrPort) (speed, cost float64, err error) {
	before, err := cpuTime()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := exchange(ctx, to, bulkBytes); err != nil {
		return 0, 0, err
	}
	took := time.Since(start)
	after, err := cpuTime()
	return bulkBytes / (1 << 20) / took.Seconds(), milliseconds(after-before) * (1 << 30) / bulkBytes, err
}

// cpuTime returns what this process has used, in user space and in the kernel.
func cpuTime() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
)

const (
	// pairsPerRound are measurements without and with probes, in turns.
	pairsPerRound = 8
	// lossLimit is what the upper end of the confidence interval may be.
	lossLimit = 5
	// lossConfidence is that of the upper end.
	lossConfidence = 0.95
)

// probeLoss measures how many connections and packets per second the probes take of
// those without, from the node to a pod that answers.
func (b *bench) probeLoss(ctx context.Context, r *report) error {
	// A VIP needs a route.
	if err := addSink(); err != nil {
		return err
	}
	target, err := newTarget(ctx)
	if err != nil {
		return err
	}
	defer target.close()
	sp := servicePort(0, 1)
	sp.Endpoints[0].Addr = target.addr
	s := dataplane.State{ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{sp.Key: sp}}
	if _, err := b.program(ctx, s); err != nil {
		return err
	}
	vip := netip.AddrPortFrom(sp.ClusterIP, sp.Port)
	conn, err := net.Dial("tcp", vip.String())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	for _, kind := range []struct {
		name string
		run  func() (float64, error)
	}{
		{"TCP connections", func() (float64, error) { return connectMany(vip) }},
		{"packets of an established connection", func() (float64, error) { return pingMany(conn) }},
	} {
		b.progress("probes, %s with and without", kind.name)
		without, losses, err := pairs(pairsPerRound*b.options.rounds, kind.run)
		if err != nil {
			return err
		}
		subject := "what the probes take of throughput, from the node to a pod"
		r.note(subject, kind.name+" without probes", median(without), "/s")
		mean, upper := upperEnd(losses)
		r.note(subject, kind.name+" lost, mean", mean, "%")
		r.atMost(subject, kind.name+" lost, upper end of the 95 % confidence interval", upper, "%", lossLimit)
	}
	return flush(ctx)
}

// pairs measures a rate without and with probes, in turns, and returns the rates
// without and the losses with them, in percent.
func pairs(n int, measure func() (float64, error)) (without, losses []float64, err error) {
	probed := func() (float64, error) {
		p, err := openCopy()
		if err != nil {
			return 0, err
		}
		rate, err := measure()
		return rate, errors.Join(err, p.Detach())
	}
	for i := range n {
		first, second := measure, probed
		if i%2 == 1 {
			first, second = probed, measure
		}
		a, err := first()
		if err != nil {
			return nil, nil, err
		}
		b, err := second()
		if err != nil {
			return nil, nil, err
		}
		if i%2 == 1 {
			a, b = b, a
		}
		without, losses = append(without, a), append(losses, 100*(1-b/a))
	}
	return without, losses, nil
}

// upperEnd returns the mean and the upper end of its confidence interval.
func upperEnd(values []float64) (mean, upper float64) {
	mean, deviation := stat.MeanStdDev(values, nil)
	n := float64(len(values))
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(lossConfidence)
	return mean, mean + t*deviation/math.Sqrt(n)
}

// connectMany returns how many connections per second are made and reset.
func connectMany(vip netip.AddrPort) (float64, error) {
	const n = 4000
	to := &unix.SockaddrInet4{Addr: vip.Addr().As4(), Port: int(vip.Port())}
	start := time.Now()
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		err = errors.Join(
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
			retried(func() error { return unix.Connect(fd, to) }),
			unix.Close(fd),
		)
		if err != nil {
			return 0, fmt.Errorf("connect to %s: %w", vip, err)
		}
	}
	return n / time.Since(start).Seconds(), nil
}

// retried calls again what a signal has interrupted.
func retried(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			if errors.Is(err, unix.EISCONN) {
				return nil
			}
			return err
		}
	}
}

// pingMany returns how many packets per second go to the endpoint, one at a time: each
// is answered before the next.
func pingMany(conn net.Conn) (float64, error) {
	const n = 10000
	buffer := make([]byte, 1)
	start := time.Now()
	for range n {
		if _, err := conn.Write(buffer); err != nil {
			return 0, err
		}
		if _, err := conn.Read(buffer); err != nil {
			return 0, err
		}
	}
	return n / time.Since(start).Seconds(), nil
}

// target is an endpoint in a pod that sends back what it gets.
type target struct {
	addr     netip.AddrPort
	network  *testbed.Network
	listener net.Listener
	serving  errgroup.Group
}

func newTarget(ctx context.Context) (*target, error) {
	node, err := testbed.CurrentNamespace()
	if err != nil {
		return nil, err
	}
	t := &target{addr: netip.MustParseAddrPort("10.244.9.1:8080")}
	if t.network, err = testbed.NewNetwork(node, testbed.DefaultPlan()); err != nil {
		return nil, err
	}
	pod, err := t.network.AddPod(ctx, testbed.PodOptions{Name: "target", Addrs: []netip.Addr{t.addr.Addr()}})
	if err != nil {
		return nil, errors.Join(err, t.network.Close())
	}
	err = pod.Do(func() (err error) {
		t.listener, err = net.Listen("tcp", t.addr.String())
		return err
	})
	if err != nil {
		return nil, errors.Join(err, t.network.Close())
	}
	t.serving.Go(t.serve)
	return t, nil
}

func (t *target) serve() error {
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			return nil // closed
		}
		t.serving.Go(func() error {
			defer func() { _ = conn.Close() }()
			buffer := make([]byte, 1)
			for {
				if _, err := conn.Read(buffer); err != nil {
					return nil // reset, as it should be
				}
				if _, err := conn.Write(buffer); err != nil {
					return nil
				}
			}
		})
	}
}

func (t *target) close() {
	_ = t.listener.Close()
	_ = t.serving.Wait()
	_ = t.network.Close()
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
)

// DefaultTimeout survives a lost SYN but not several.
const DefaultTimeout = 5 * time.Second

// Load opens many connections from several clients. The source ports of a client
// and a protocol come in turns, also over several loads, so that one comes up again
// as late as possible: a datagram of a port that conntrack remembers would be no new
// connection.
type Load struct {
	// Clients are the namespaces that connections come from.
	Clients []*Namespace
	// Workers is how many connections each client has open at a time; 0
	// means 8.
	Workers int
	// Timeout is how long an answer may take; 0 means DefaultTimeout.
	Timeout time.Duration
	// Observe gets every outcome, one call at a time. It must not block.
	Observe func(Outcome)
}

// Outcome is one connection.
type Outcome struct {
	VIP    dataplane.VIP
	Answer Answer
	// Err is nil if there was an answer.
	Err error
}

// Run opens one connection to each VIP that it receives, until the channel is
// closed and all have ended. A failed connection is an Outcome, not an error:
// the only errors are that a client's namespace cannot be entered and that ctx
// is done. Connections that ctx cuts short are not observed.
func (l *Load) Run(ctx context.Context, vips <-chan dataplane.VIP) error {
	workers, timeout := l.Workers, l.Timeout
	if workers == 0 {
		workers = 8
	}
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	var observing sync.Mutex
	observe := func(outcome Outcome) {
		observing.Lock()
		defer observing.Unlock()
		l.Observe(outcome)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, client := range l.Clients {
		for range workers {
			group.Go(func() error {
				return client.Do(func() error { return client.work(ctx, vips, timeout, observe) })
			})
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("open connections: %w", err)
	}
	return nil
}

func (n *Namespace) work(ctx context.Context, vips <-chan dataplane.VIP, timeout time.Duration, observe func(Outcome)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case vip, more := <-vips:
			if !more {
				return nil
			}
			asking, cancel := context.WithTimeout(ctx, timeout)
			answer, err := n.askInTurn(asking, vip)
			cancel()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			observe(Outcome{VIP: vip, Answer: answer, Err: err})
		}
	}
}

// askInTurn does as Ask, from the next source port that is free.
func (n *Namespace) askInTurn(ctx context.Context, vip dataplane.VIP) (Answer, error) {
	ports := &n.tcpPorts
	if vip.Protocol == dataplane.UDP {
		ports = &n.udpPorts
	}
	for {
		answer, err := AskFrom(ctx, ports.next(), vip)
		if !errors.Is(err, unix.EADDRINUSE) || ctx.Err() != nil {
			return answer, err
		}
	}
}

// sourcePorts hands out source ports in turns. It is safe for concurrent use.
type sourcePorts struct{ handedOut atomic.Uint32 }

// firstSourcePort is above the ports that servers of tests listen on as a rule.
const firstSourcePort = 1 << 14

func (p *sourcePorts) next() uint16 {
	return uint16(firstSourcePort + (p.handedOut.Add(1)-1)%(1<<16-firstSourcePort))
}

// Tally counts outcomes by VIP. The zero value is empty and ready.
type Tally struct {
	vips map[dataplane.VIP]*Count
}

// Count is the tally of one VIP.
type Count struct {
	// Endpoints counts answers by the endpoint that gave them.
	Endpoints map[netip.AddrPort]int
	// Failures counts failed connections by [Reason].
	Failures map[string]int
}

// Add counts one outcome.
func (t *Tally) Add(outcome Outcome) {
	if t.vips == nil {
		t.vips = map[dataplane.VIP]*Count{}
	}
	count := t.vips[outcome.VIP]
	if count == nil {
		count = &Count{Endpoints: map[netip.AddrPort]int{}, Failures: map[string]int{}}
		t.vips[outcome.VIP] = count
	}
	if outcome.Err != nil {
		count.Failures[Reason(outcome.Err)]++
		return
	}
	count.Endpoints[outcome.Answer.Endpoint]++
}

// Of returns the tally of a VIP; it is empty, and its maps nil, if there was no
// connection to it.
func (t *Tally) Of(vip dataplane.VIP) Count {
	if count := t.vips[vip]; count != nil {
		return *count
	}
	return Count{}
}

// Totals returns how many connections were opened, and how many of them failed.
func (t *Tally) Totals() (connections, failed int) {
	for _, count := range t.vips {
		for _, n := range count.Endpoints {
			connections += n
		}
		for _, n := range count.Failures {
			connections += n
			failed += n
		}
	}
	return connections, failed
}

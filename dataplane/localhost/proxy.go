// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// proxy serves one NodePort on one loopback address.
type proxy struct {
	o        Options
	name     string
	port     uint16
	listener net.Listener
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu sync.Mutex
	// rows are the endpoints, each as often as it has buckets.
	rows     []netip.AddrPort
	affinity time.Duration
	// stuck is where clients were last, and when.
	stuck map[netip.Addr]stay
	conns map[net.Conn]struct{}
}

type stay struct {
	endpoint netip.AddrPort
	last     time.Time
}

func newProxy(o Options, sp *dataplane.ServicePort, listener net.Listener) *proxy {
	ctx, cancel := context.WithCancel(context.Background())
	return &proxy{
		o: o, name: sp.Key.String(), port: sp.External.NodePort, listener: listener, ctx: ctx, cancel: cancel,
		stuck: make(map[netip.Addr]stay), conns: make(map[net.Conn]struct{}),
	}
}

// update takes the endpoints for new connections.
func (p *proxy) update(sp *dataplane.ServicePort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows = p.rows[:0:0]
	for _, ep := range sp.Endpoints {
		for range ep.Buckets() {
			p.rows = append(p.rows, ep.Addr)
		}
	}
	p.affinity = time.Duration(sp.AffinitySeconds) * time.Second
	if p.affinity == 0 {
		clear(p.stuck)
	}
}

// pick returns the endpoint for a new connection.
func (p *proxy) pick(client netip.Addr) (netip.AddrPort, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rows) == 0 {
		return netip.AddrPort{}, false
	}
	now := p.o.Now()
	if old, ok := p.stuck[client]; ok && now.Sub(old.last) < p.affinity && slices.Contains(p.rows, old.endpoint) {
		p.stuck[client] = stay{old.endpoint, now}
		return old.endpoint, true
	}
	endpoint := p.rows[p.o.Draw(len(p.rows))]
	if p.affinity > 0 {
		p.stuck[client] = stay{endpoint, now}
	}
	return endpoint, true
}

// serve accepts connections until close.
func (p *proxy) serve() {
	p.running.Go(func() {
		failing := false
		for {
			conn, err := p.listener.Accept()
			if err == nil {
				failing = false
				p.running.Go(func() { p.handle(conn) })
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if !failing {
				failing = true
				p.o.Logger.Error("cannot accept connections to a NodePort on the loopback address, trying again",
					"servicePort", p.name, "nodePort", p.port, "err", err)
			}
			select {
			case <-p.ctx.Done():
				return
			case <-p.o.After(acceptAgain):
			}
		}
	})
}

func (p *proxy) handle(client net.Conn) {
	if !p.track(client) {
		return
	}
	defer p.untrack(client)
	endpoint, ok := p.pick(clientOf(client))
	if !ok {
		reset(client)
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	server, err := p.o.Dial(ctx, "tcp", endpoint.String())
	cancel()
	if err != nil {
		p.o.Logger.Debug("an endpoint does not answer", "servicePort", p.name, "endpoint", endpoint.String(), "err", err)
		reset(client)
		return
	}
	if !p.track(server) {
		return
	}
	defer p.untrack(server)
	var both sync.WaitGroup
	both.Go(func() { copyHalf(server, client) })
	both.Go(func() { copyHalf(client, server) })
	both.Wait()
}

// copyHalf copies until the end of one direction, and passes the end on. Data may
// still come the other way.
func copyHalf(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	closed := ok && half.CloseWrite() == nil
	if err == nil && closed || errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	// One of the two is gone. What it had sent before may still be on its way to the
	// other. What the other sends now is read, for nobody: closing a connection with
	// something unread would reset it, and the end of the answer would be lost.
	end := time.Now().Add(lingerTimeout)
	_ = to.SetDeadline(end)
	_ = from.SetDeadline(end)
	_, _ = io.Copy(io.Discard, from)
}

// reset closes a connection so that the client sees that it was refused.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

func clientOf(conn net.Conn) netip.Addr {
	if addr, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return addr.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// track keeps a connection until untrack, to be closed with the proxy. It closes one
// that comes too late.
func (p *proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		_ = conn.Close()
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *proxy) untrack(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
	_ = conn.Close()
}

// close ends the listener and all connections, and waits for them.
func (p *proxy) close() {
	p.mu.Lock()
	p.cancel()
	_ = p.listener.Close()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/veridict/veridict/dataplane"
)

// Server is an endpoint that answers every connection with a line of text:
//
//	<its own address and port> <the client's address and port> <what was asked>
//
// A TCP endpoint speaks HTTP/1.1 and returns the path asked for, a UDP endpoint
// the datagram.
type Server struct {
	close    func() error
	done     chan struct{}
	answered atomic.Int64
}

// Serve starts an endpoint in the namespace, which must have the address.
// Protocol is TCP or UDP. The endpoint listens when Serve returns. By TCP the
// unspecified address stands for all that the namespace has; each answers for itself.
func (n *Namespace) Serve(protocol dataplane.Protocol, addr netip.AddrPort) (*Server, error) {
	server := &Server{done: make(chan struct{})}
	err := n.Do(func() error {
		switch protocol {
		case dataplane.TCP:
			return server.serveHTTP(addr)
		case dataplane.UDP:
			return server.serveUDP(addr)
		default:
			return errors.ErrUnsupported
		}
	})
	if err != nil {
		return nil, fmt.Errorf("serve %s on %s: %w", protocol, addr, err)
	}
	return server, nil
}

// Close stops the endpoint, cuts its connections and waits for their end.
func (s *Server) Close() error {
	err := s.close()
	<-s.done
	return err
}

// Answered returns how many requests it has answered: with clients such as [Ask],
// how many connections or, by UDP, datagrams. A request counts before the answer is
// sent.
func (s *Server) Answered() int { return int(s.answered.Load()) }

func (s *Server) serveHTTP(addr netip.AddrPort) error {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return err
	}
	server := &http.Server{
		// Clients cut their connections with a reset, which is no news.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.answered.Add(1)
			fmt.Fprintf(w, "%s %s %s\n", r.Context().Value(http.LocalAddrContextKey), r.RemoteAddr, r.URL.Path)
		}),
	}
	s.close = server.Close
	go func() {
		defer close(s.done)
		_ = server.Serve(listener) // always ends with ErrServerClosed
	}()
	return nil
}

func (s *Server) serveUDP(addr netip.AddrPort) error {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return err
	}
	s.close = conn.Close
	go func() {
		defer close(s.done)
		s.echo(conn, addr)
	}()
	return nil
}

// echo answers datagrams until the socket is closed. A failed answer is for the
// client to notice.
func (s *Server) echo(conn *net.UDPConn, addr netip.AddrPort) {
	buffer := make([]byte, 2048)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		s.answered.Add(1)
		client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
		_, _ = conn.WriteToUDPAddrPort(fmt.Appendf(nil, "%s %s %s\n", addr, client, buffer[:n]), client)
	}
}

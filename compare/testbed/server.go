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

	"github.com/veridict/veridict/dataplane"
)

// Server is an endpoint that answers every connection with a line of text:
//
//	<its own address and port> <the client's address and port> <what was asked>
//
// A TCP endpoint speaks HTTP/1.1 and returns the path asked for, a UDP endpoint
// the datagram.
type Server struct {
	close func() error
	done  chan struct{}
}

// Serve starts an endpoint in the namespace, which must have the address.
// Protocol is TCP or UDP. The endpoint listens when Serve returns.
func (n *Namespace) Serve(protocol dataplane.Protocol, addr netip.AddrPort) (*Server, error) {
	var server *Server
	err := n.Do(func() (err error) {
		switch protocol {
		case dataplane.TCP:
			server, err = serveHTTP(addr)
		case dataplane.UDP:
			server, err = serveUDP(addr)
		default:
			err = errors.ErrUnsupported
		}
		return err
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

func serveHTTP(addr netip.AddrPort) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	server := &http.Server{
		// Clients cut their connections with a reset, which is no news.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s %s\n", addr, r.RemoteAddr, r.URL.Path)
		}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // always ends with ErrServerClosed
	}()
	return &Server{close: server.Close, done: done}, nil
}

func serveUDP(addr netip.AddrPort) (*Server, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		echo(conn, addr)
	}()
	return &Server{close: conn.Close, done: done}, nil
}

// echo answers datagrams until the socket is closed. A failed answer is for the
// client to notice.
func echo(conn *net.UDPConn, addr netip.AddrPort) {
	buffer := make([]byte, 2048)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
		_, _ = conn.WriteToUDPAddrPort(fmt.Appendf(nil, "%s %s %s\n", addr, client, buffer[:n]), client)
	}
}

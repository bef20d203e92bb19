// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// socket is one that tests make calls with which the net package does not make.
type socket struct {
	t      *testing.T
	fd     int
	domain int
}

// newSocket returns a socket that is closed with the test. Nothing waits for longer
// than 5 s.
func newSocket(t *testing.T, domain, kind int) *socket {
	t.Helper()
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &unix.Timeval{Sec: 5}); err != nil {
			t.Fatal(err)
		}
	}
	return &socket{t, fd, domain}
}

func (s *socket) sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if s.domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}

func (s *socket) addrPort(addr unix.Sockaddr) netip.AddrPort {
	s.t.Helper()
	switch addr := addr.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(addr.Addr), uint16(addr.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(addr.Addr), uint16(addr.Port))
	default:
		s.t.Fatalf("address %#v", addr)
		return netip.AddrPort{}
	}
}

func (s *socket) tryConnect(to netip.AddrPort) error { return unix.Connect(s.fd, s.sockaddr(to)) }

func (s *socket) connect(to netip.AddrPort) {
	s.t.Helper()
	if err := s.tryConnect(to); err != nil {
		s.t.Fatalf("connect to %s: %v", to, err)
	}
}

func (s *socket) bind(to netip.AddrPort) {
	s.t.Helper()
	if err := unix.Bind(s.fd, s.sockaddr(to)); err != nil {
		s.t.Fatalf("bind to %s: %v", to, err)
	}
}

func (s *socket) bindToDevice(name string) {
	s.t.Helper()
	if err := unix.BindToDevice(s.fd, name); err != nil {
		s.t.Fatalf("bind to %s: %v", name, err)
	}
}

func (s *socket) peer() netip.AddrPort {
	s.t.Helper()
	peer, err := unix.Getpeername(s.fd)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.addrPort(peer)
}

// sendFrom sends a datagram with a source of its own.
func (s *socket) sendFrom(source, to netip.AddrPort) {
	s.t.Helper()
	var control []byte
	if s.domain == unix.AF_INET {
		control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: source.Addr().As4()})
	} else {
		control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: source.Addr().As16()})
	}
	if err := unix.Sendmsg(s.fd, []byte("question"), control, s.sockaddr(to), 0); err != nil {
		s.t.Fatalf("send from %s to %s: %v", source, to, err)
	}
}

// send sends a datagram, to the peer of a connected socket.
func (s *socket) send(to netip.AddrPort, connected bool) {
	s.t.Helper()
	var addr unix.Sockaddr
	if !connected {
		addr = s.sockaddr(to)
	}
	if err := unix.Sendmsg(s.fd, []byte("question"), nil, addr, 0); err != nil {
		s.t.Fatalf("send to %s: %v", to, err)
	}
}

func (s *socket) receive() (string, netip.AddrPort) {
	s.t.Helper()
	buffer := make([]byte, 512)
	n, from, err := unix.Recvfrom(s.fd, buffer, 0)
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	return string(buffer[:n]), s.addrPort(from)
}

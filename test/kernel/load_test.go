// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// load opens connections without pause until it is told to stop.
type load struct {
	senders, acceptors errgroup.Group
	stop, stopAccept   context.CancelFunc
	// connects and datagrams count attempts, refused those connects that
	// failed.
	connects, datagrams, refused atomic.Int64
	firstError                   atomic.Pointer[error]
}

func newLoad(t testing.TB) (*load, context.Context) {
	l := &load{}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(t.Context())
	t.Cleanup(func() { _ = l.end() })
	return l, ctx
}

// end stops the load and waits for its end. Who accepts ends last, so that
// nobody is refused.
func (l *load) end() error {
	l.stop()
	err := l.senders.Wait()
	if l.stopAccept != nil {
		l.stopAccept()
	}
	return errors.Join(err, l.acceptors.Wait())
}

// sendDatagrams sends datagrams from the client pod to the VIP, each from
// another source and thus a flow of its own. The sources are not the pod's: an
// answer would go nowhere, but the node drops the datagrams after it has counted
// them; see watcher.
func (l *load) sendDatagrams(ctx context.Context, c *cluster, source netip.Addr, vip netip.AddrPort) {
	l.senders.Go(func() error {
		var fd int
		err := c.client.Do(func() (err error) {
			fd, err = unix.Socket(domain(vip.Addr()), unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			return err
		})
		if err != nil {
			return fmt.Errorf("open raw socket: %w", err)
		}
		defer func() { _ = unix.Close(fd) }()
		packet, ports := datagram(source, vip)
		to := sockaddr(netip.AddrPortFrom(vip.Addr(), 0))
		for n := 0; ctx.Err() == nil; n++ {
			binary.BigEndian.PutUint16(ports, uint16(1024+n%64000))
			switch err := unix.Sendto(fd, packet, 0, to); {
			case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			case err != nil:
				return fmt.Errorf("send datagram: %w", err)
			default:
				l.datagrams.Add(1)
			}
		}
		return nil
	})
}

// datagram returns an IP packet with an empty UDP datagram, and the place of its
// source port. Without a checksum, conntrack takes it as it is.
func datagram(source netip.Addr, dest netip.AddrPort) (packet, sourcePort []byte) {
	const udpLen = 8
	if source.Is4() {
		packet = make([]byte, 20, 28)
		packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(packet[2:], 20+udpLen)
		copy(packet[12:], source.AsSlice())
		copy(packet[16:], dest.Addr().AsSlice())
	} else {
		packet = make([]byte, 40, 48)
		packet[0], packet[6], packet[7] = 0x60, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(packet[4:], udpLen)
		copy(packet[8:], source.AsSlice())
		copy(packet[24:], dest.Addr().AsSlice())
	}
	packet = binary.BigEndian.AppendUint16(packet, 0)
	packet = binary.BigEndian.AppendUint16(packet, dest.Port())
	packet = binary.BigEndian.AppendUint16(packet, udpLen)
	packet = binary.BigEndian.AppendUint16(packet, 0)
	return packet, packet[len(packet)-udpLen:]
}

// connect opens TCP connections from the node to the VIP and resets them, one
// after the other.
func (l *load) connect(ctx context.Context, source netip.Addr, vip netip.AddrPort) {
	const perSource = 16000 // of some 60,000 ports
	l.senders.Go(func() error {
		to := sockaddr(vip)
		for n := 0; ctx.Err() == nil; n++ {
			from := sockaddr(netip.AddrPortFrom(nth(source, n/perSource), 0))
			err := connectOnce(from, to)
			l.connects.Add(1)
			if err != nil {
				l.refused.Add(1)
				l.firstError.CompareAndSwap(nil, &err)
			}
		}
		return nil
	})
}

func connectOnce(from, to unix.Sockaddr) error {
	family := unix.AF_INET
	if _, ok := to.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 10}),
		unix.Bind(fd, from),
	)
	if err != nil {
		return err
	}
	for {
		if err = unix.Connect(fd, to); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil && !errors.Is(err, unix.EISCONN) {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// accept takes connections at tcpTarget of all addresses of the endpoints' pod,
// and closes them. Clients reset theirs, so that none waits in any state.
func (l *load) accept(t testing.TB, c *cluster) {
	t.Helper()
	var ctx context.Context
	ctx, l.stopAccept = context.WithCancel(context.Background())
	var fd int
	err := c.endpoints.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, &unix.SockaddrInet6{Port: tcpTarget}),
			unix.Listen(fd, 4096),
		)
	})
	if err != nil {
		t.Fatal("listen:", err)
	}
	// A shutdown wakes whoever waits in accept.
	context.AfterFunc(ctx, func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	l.acceptors.Go(func() error {
		defer func() { _ = unix.Close(fd) }()
		for ctx.Err() == nil {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			switch {
			case err == nil:
				_ = unix.Close(conn)
			case ctx.Err() == nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED):
				return fmt.Errorf("accept: %w", err)
			}
		}
		return nil
	})
}

func domain(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}
	}
	return &unix.SockaddrInet6{Addr: addr.Addr().As16(), Port: int(addr.Port())}
}

// watcher is a table that counts the datagrams of a load after translation: those
// that go to an endpoint, and those that escaped, which still go to a VIP. It
// drops both before conntrack keeps them, so that a million flows need no room.
const watcher = `
table inet watcher {
	set vips { type ipv4_addr; flags interval; elements = { 10.97.0.0/16 } }
	set vips6 { type ipv6_addr; flags interval; elements = { fd00:10:97::/112 } }
	counter arrived {}
	counter translated {}
	counter escaped {}
	chain prerouting {
		type filter hook prerouting priority -300;
		iifname "pod0" ip daddr @vips counter name arrived
		iifname "pod0" ip6 daddr @vips6 counter name arrived
	}
	chain input {
		type filter hook input priority -50;
		ip daddr @vips counter name escaped
		ip6 daddr @vips6 counter name escaped
		udp dport 5353 drop comment "no answer is wanted"
	}
	chain forward {
		type filter hook forward priority -50;
		udp dport 5300 counter name translated drop
	}
}
`

// counted returns what the watcher has counted.
func counted(t testing.TB, counter string) int {
	t.Helper()
	return packets(t, "counter", "inet", "watcher", counter)
}

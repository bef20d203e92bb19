// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Redirection leads a NodePort on loopback addresses to an address of the node.
type Redirection struct {
	// From is the NodePort on 127.0.0.1, which stands for all of 127.0.0.0/8, or
	// on ::1.
	From netip.AddrPort
	// Protocol is the IANA number of TCP or UDP.
	Protocol uint8
	// To is of the same IP version as From.
	To netip.Addr
}

// Redirect leads new connections and datagrams to the same port of another address,
// whatever was said of from before; see [Redirection]. Connections that are open stay
// where they are. [ErrFull] says that there are too many.
func (p *Programs) Redirect(from netip.AddrPort, protocol uint8, to netip.Addr) error {
	if from.Addr().Is4() != to.Is4() || !to.IsValid() || to.Is4In6() || to.Zone() != "" || to.IsLoopback() {
		return fmt.Errorf("redirect %s: %q is no address that it can be led to", from, to)
	}
	err := p.objects.NodePorts.Put(keyOf(from, protocol), kernelAddress{Bytes: to.As16()})
	if errors.Is(err, unix.E2BIG) {
		err = ErrFull
	}
	if err != nil {
		return fmt.Errorf("redirect %s to %s: %w", from, to, err)
	}
	return nil
}

// Withdraw ends what Redirect began, for new connections and datagrams. What is not
// redirected is no error.
func (p *Programs) Withdraw(from netip.AddrPort, protocol uint8) error {
	err := p.objects.NodePorts.Delete(keyOf(from, protocol))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("withdraw %s: %w", from, err)
	}
	return nil
}

// Retain withdraws all that keep returns false for.
func (p *Programs) Retain(keep func(from netip.AddrPort, protocol uint8) bool) error {
	all, err := p.Redirections()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if !keep(r.From, r.Protocol) {
			errs = append(errs, p.Withdraw(r.From, r.Protocol))
		}
	}
	return errors.Join(errs...)
}

// Redirections returns what is redirected, in no order: also what an earlier process
// did whose pins were taken over.
func (p *Programs) Redirections() ([]Redirection, error) {
	var all []Redirection
	var key kernelNodePort
	var to kernelAddress
	entries := p.objects.NodePorts.Iterate()
	for entries.Next(&key, &to) {
		from := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if key.IpVersion == 6 {
			from = netip.IPv6Loopback()
		}
		all = append(all, Redirection{From: netip.AddrPortFrom(from, key.Port), Protocol: key.Protocol, To: netip.AddrFrom16(to.Bytes).Unmap()})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("list redirected NodePorts: %w", err)
	}
	return all, nil
}

func keyOf(from netip.AddrPort, protocol uint8) kernelNodePort {
	key := kernelNodePort{IpVersion: 6, Protocol: protocol, Port: from.Port()}
	if from.Addr().Is4() {
		key.IpVersion = 4
	}
	return key
}

// Counts are how often the programs did something since they were first loaded, by
// this process or by those whose pins it took over.
type Counts struct {
	// Connects and sends that were redirected. A UDP client without connection
	// counts once for each datagram.
	IPv4TCPConnects, IPv6TCPConnects uint64
	IPv4UDPConnects, IPv6UDPConnects uint64
	IPv4UDPSends, IPv6UDPSends       uint64
	// Bound counts those that were left alone as the socket was bound to a loopback
	// address or to an interface.
	Bound uint64
	// Unremembered counts redirected ones whose clients see the node's address as
	// that of their peer, as there was no memory.
	Unremembered uint64
}

// Counts reads the counters.
func (p *Programs) Counts() (Counts, error) {
	var perCPU []kernelCounts
	if err := p.objects.Counts.Lookup(uint32(0), &perCPU); err != nil {
		return Counts{}, fmt.Errorf("read counters of redirected connections: %w", err)
	}
	var sum Counts
	for _, c := range perCPU {
		sum.IPv4TCPConnects += c.Ipv4TcpConnects
		sum.IPv6TCPConnects += c.Ipv6TcpConnects
		sum.IPv4UDPConnects += c.Ipv4UdpConnects
		sum.IPv6UDPConnects += c.Ipv6UdpConnects
		sum.IPv4UDPSends += c.Ipv4UdpSends
		sum.IPv6UDPSends += c.Ipv6UdpSends
		sum.Bound += c.Bound
		sum.Unremembered += c.Unremembered
	}
	return sum, nil
}

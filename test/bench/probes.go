// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gonum.org/v1/gonum/stat"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/dataplane"
)

const (
	// probedPackets are sent for one measurement. They are far less than
	// connection tracking keeps.
	probedPackets = 20000
	// newLimit and establishedLimit are what both probes together may take, in
	// nanoseconds.
	newLimit, establishedLimit = 500, 150
)

// copies is how many pairs of probes are attached for a measurement. One pair is lost
// in the noise, the slope over many is not.
func copies() []int { return []int{1, 8, 16, 24, 32} }

// probeCost measures what the probes take of the first packet of a connection and of
// a later one: how much longer a packet takes with each further pair attached.
func (b *bench) probeCost(ctx context.Context, r *report) error {
	if err := addSink(); err != nil {
		return err
	}
	if _, err := b.program(ctx, probedState()); err != nil {
		return err
	}
	subject := "both probes together, on the way out of this node"
	for _, kind := range []struct {
		name  string
		send  func() (time.Duration, error)
		limit float64
	}{
		{"first packet of a TCP connection", sendSYNs, newLimit},
		{"packet of an established flow", sendEstablished, establishedLimit},
		{"packet of a flow without an answer", sendUnanswered, establishedLimit},
	} {
		var slopes []float64
		for round := range b.options.rounds {
			b.progress("probes, %s, round %d of %d", kind.name, round+1, b.options.rounds)
			slope, err := slopeOverCopies(kind.send)
			if err != nil {
				return err
			}
			slopes = append(slopes, slope)
		}
		r.atMost(subject, kind.name, median(slopes), "ns", kind.limit)
	}
	return flush(ctx)
}

// probedState has a Service with one endpoint, by TCP and by UDP.
func probedState() dataplane.State {
	s := state(1, 1)
	sp := servicePort(0, 1)
	sp.Key.Protocol = dataplane.UDP
	s.ServicePorts[sp.Key] = sp
	return s
}

// slopeOverCopies returns how many nanoseconds each pair of probes adds to what is
// sent.
func slopeOverCopies(send func() (time.Duration, error)) (slope float64, err error) {
	var attached []*probes.Probes
	defer func() {
		for _, p := range attached {
			err = errors.Join(err, p.Detach())
		}
	}()
	var x, y []float64
	for _, n := range copies() {
		for len(attached) < n {
			p, err := openCopy()
			if err != nil {
				return 0, err
			}
			attached = append(attached, p)
		}
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return 0, fmt.Errorf("flush connection tracking: %w", err)
		}
		took, err := send()
		if err != nil {
			return 0, err
		}
		x, y = append(x, float64(n)), append(y, float64(took.Nanoseconds()))
	}
	_, slope = stat.LinearRegression(x, y, nil, false)
	return slope, nil
}

// openCopy attaches a pair of probes, further away from translation than all others.
func openCopy() (*probes.Probes, error) {
	var places probes.Priorities
	for n := range int32(64) {
		places.Before, places.After = append(places.Before, -101-n), append(places.After, -99+n)
	}
	p, err := probes.Open(probes.Options{MaxSelections: 1024, Priorities: places})
	if err != nil {
		return nil, err
	}
	frontends := make(map[probes.Frontend]probes.Affinity)
	for _, sp := range probedState().ServicePorts {
		vip := sp.VIP()
		frontends[probes.Frontend{Addr: vip.Addr, Port: vip.Port, Protocol: uint8(vip.Protocol), Family: 4}] = probes.Affinity{}
	}
	if err := p.SetFrontends(frontends, nil); err != nil {
		return nil, errors.Join(err, p.Detach())
	}
	return p, nil
}

// sendSYNs sends packets that are each the first of a connection, and returns what
// one took.
func sendSYNs() (time.Duration, error) {
	packet := tcpSYN(probedClient(), clusterIP(0))
	return sendPackets(packet, func(i int) {
		binary.BigEndian.PutUint16(packet[20:], uint16(1024+i))
		binary.BigEndian.PutUint32(packet[24:], uint32(i))
	})
}

// sendEstablished sends packets of one flow that was answered.
func sendEstablished() (time.Duration, error) {
	packet := udpPacket(probedClient(), clusterIP(0))
	binary.BigEndian.PutUint16(packet[20:], probedPort)
	if err := sendRaw(packet); err != nil {
		return 0, err
	}
	if err := answer(); err != nil {
		return 0, err
	}
	listing, err := exec.Command("conntrack", "-L", "-p", "udp").Output()
	if err != nil {
		return 0, fmt.Errorf("conntrack -L: %w", err)
	}
	if !bytes.Contains(listing, []byte("dport=80 ")) || bytes.Contains(listing, []byte("UNREPLIED")) {
		return 0, fmt.Errorf("the flow was not answered: %s", listing)
	}
	return sendPackets(packet, func(int) {})
}

// sendUnanswered sends packets of one flow that was not: its entry is confirmed, but
// its packets look new until one sees the entry.
func sendUnanswered() (time.Duration, error) {
	packet := udpPacket(probedClient(), clusterIP(0))
	binary.BigEndian.PutUint16(packet[20:], probedPort)
	return sendPackets(packet, func(int) {})
}

// probedPort is the source port of a flow.
const probedPort = 1024

// probedClient is the source of packets. The address exists nowhere.
func probedClient() netip.Addr { return netip.AddrFrom4([4]byte{10, 200, 0, 1}) }

// sendPackets sends one packet after the other, each changed before, and returns what
// one took.
func sendPackets(packet []byte, change func(i int)) (time.Duration, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return 0, fmt.Errorf("open raw socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	to := &unix.SockaddrInet4{Addr: clusterIP(0).As4()}
	var start time.Time
	for i := range probedPackets {
		if i == warmUp {
			start = time.Now()
		}
		change(i)
		if err := unix.Sendto(socket, packet, 0, to); err != nil {
			return 0, fmt.Errorf("send: %w", err)
		}
	}
	return time.Since(start) / (probedPackets - warmUp), nil
}

func sendRaw(packet []byte) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Sendto(socket, packet, 0, &unix.SockaddrInet4{Addr: clusterIP(0).As4()}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// answer has the endpoint answer the flow, from behind the sink.
func answer() error {
	sink, err := netlink.LinkByName("sink")
	if err != nil {
		return fmt.Errorf("find link: %w", err)
	}
	drain, err := netlink.LinkByName("drain")
	if err != nil {
		return fmt.Errorf("find link: %w", err)
	}
	from := endpoint(0, 0)
	packet := udpPacket(from.Addr(), probedClient())
	binary.BigEndian.PutUint16(packet[20:], from.Port())
	binary.BigEndian.PutUint16(packet[22:], probedPort)
	binary.BigEndian.PutUint16(packet[10:], headerChecksum(packet[:20]))
	frame := append(append(net.HardwareAddr{}, sink.Attrs().HardwareAddr...), drain.Attrs().HardwareAddr...)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Sendto(socket, append(frame, packet...), 0, &unix.SockaddrLinklayer{Ifindex: drain.Attrs().Index}); err != nil {
		return fmt.Errorf("send answer: %w", err)
	}
	return nil
}

// headerChecksum is that of an IPv4 header whose checksum is 0.
func headerChecksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// tcpSYN returns a packet with an IPv4 and a TCP header, whose source port and
// sequence number are filled in later.
func tcpSYN(source, dest netip.Addr) []byte {
	const headers, offset, syn = 40, 5 << 4, 2
	packet := make([]byte, headers)
	packet[0] = 0x45
	binary.BigEndian.PutUint16(packet[2:], headers)
	packet[8], packet[9] = 64, unix.IPPROTO_TCP
	copy(packet[12:], source.AsSlice())
	copy(packet[16:], dest.AsSlice())
	binary.BigEndian.PutUint16(packet[22:], 80)
	packet[32], packet[33] = offset, syn
	return packet
}

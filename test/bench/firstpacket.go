// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
)

// packetsPerRound are sent in one go. Connection tracking keeps more.
const packetsPerRound = 20000

// independent is how much longer a packet may take with a hundred times the endpoints:
// noise.
const independent = 1.1

// firstPackets measures what the first packet of a client costs that has a pin, with
// few and with many endpoints, in veridict's layout and in kube-proxy's. What the
// kernel does without rules is taken off.
func (b *bench) firstPackets(ctx context.Context, r *report) error {
	if err := addSink(); err != nil {
		return err
	}
	const few, many = 2, 200
	costs := make(map[string][]float64)
	for round := range b.options.rounds {
		b.progress("affinity, first packets, round %d of %d", round+1, b.options.rounds)
		floor, err := b.packetCost(ctx, func() error { return flush(ctx) })
		if err != nil {
			return err
		}
		for _, n := range []int{few, many} {
			s := stickyState(n)
			ours := func() error { _, err := b.program(ctx, s); return err }
			theirs := func() error { return b.load(ctx, kubeProxyLayout(s)) }
			for name, program := range map[string]func() error{"veridict": ours, "kube-proxy's layout": theirs} {
				cost, err := b.packetCost(ctx, program)
				if err != nil {
					return err
				}
				key := fmt.Sprintf("%s, %d endpoints", name, n)
				costs[key] = append(costs[key], float64(cost-floor))
			}
		}
	}
	subject := "first packet of a client with a pin, above that of a namespace without rules"
	figure := func(name string, n int) string { return fmt.Sprintf("%s, %d endpoints", name, n) }
	for _, name := range []string{"veridict", "kube-proxy's layout"} {
		for _, n := range []int{few, many} {
			r.note(subject, figure(name, n), median(costs[figure(name, n)]), "ns")
		}
	}
	r.atMost(subject, "veridict, times as long with 200 endpoints", ratio(costs[figure("veridict", many)], costs[figure("veridict", few)]), "", independent)
	return nil
}

// stickyState is one UDP Service with session affinity.
func stickyState(endpoints int) dataplane.State {
	sp := servicePort(0, endpoints)
	sp.Key.Protocol, sp.AffinitySeconds = dataplane.UDP, affinitySeconds
	return dataplane.State{ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{sp.Key: sp}}
}

func (b *bench) load(ctx context.Context, text string) error {
	if err := flush(ctx); err != nil {
		return err
	}
	path := filepath.Join(b.dir, "first-packet.nft")
	if err := writeText(path, text); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "nft", "-f", path).CombinedOutput(); err != nil {
		return fmt.Errorf("nft -f: %w: %s", err, out)
	}
	return nil
}

// addSink gives the namespace a link that takes everything and answers nothing.
func addSink() error {
	const name = "sink"
	if _, err := netlink.LinkByName(name); err == nil {
		return nil // another experiment has made it
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "drain"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add link: %w", err)
	}
	drain, err := netlink.LinkByName(link.PeerName)
	if err != nil {
		return fmt.Errorf("find link: %w", err)
	}
	for _, l := range []netlink.Link{link, drain} {
		if err := netlink.LinkSetARPOff(l); err != nil {
			return fmt.Errorf("switch off ARP: %w", err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("bring up link: %w", err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{
		LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
	}); err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	return nil
}

// packetCost returns the time that the first packet of a connection takes, in
// nanoseconds: of connections of one client, which has a pin after the first.
func (b *bench) packetCost(ctx context.Context, program func() error) (int64, error) {
	if err := program(); err != nil {
		return 0, err
	}
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return 0, fmt.Errorf("flush connection tracking: %w", err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return 0, fmt.Errorf("open raw socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	vip := clusterIP(0)
	packet := udpPacket(netip.AddrFrom4([4]byte{10, 200, 0, 1}), vip)
	to := &unix.SockaddrInet4{Addr: vip.As4()}
	var took time.Duration
	for i := range packetsPerRound {
		binary.BigEndian.PutUint16(packet[20:], uint16(1024+i))
		if i == warmUp {
			took = 0
		}
		start := time.Now()
		err := unix.Sendto(socket, packet, 0, to)
		took += time.Since(start)
		if err != nil {
			return 0, fmt.Errorf("send: %w", err)
		}
	}
	return took.Nanoseconds() / (packetsPerRound - warmUp), ctx.Err()
}

// warmUp are packets that do not count.
const warmUp = 1000

// udpPacket returns a packet with an IPv4 header and eight bytes of UDP, whose source
// port is filled in later.
func udpPacket(source, dest netip.Addr) []byte {
	const headers, protocolUDP = 28, 17
	packet := make([]byte, headers)
	packet[0] = 0x45
	binary.BigEndian.PutUint16(packet[2:], headers)
	packet[8], packet[9] = 64, protocolUDP
	copy(packet[12:], source.AsSlice())
	copy(packet[16:], dest.AsSlice())
	binary.BigEndian.PutUint16(packet[22:], 80)
	binary.BigEndian.PutUint16(packet[24:], headers-20)
	return packet
}

func writeText(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

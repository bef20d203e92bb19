// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// sweptPins is the number of clients whose pins are looked at.
const sweptPins = 65000

// sweepPins measures how long the pins of an endpoint outlive it, with many clients.
func (b *bench) sweepPins(ctx context.Context, r *report) error {
	if err := addSink(); err != nil {
		return err
	}
	var took []float64
	deleted := 0
	for round := range b.options.rounds {
		b.progress("affinity, sweep of pins, round %d of %d", round+1, b.options.rounds)
		d, n, err := b.sweepOnce(ctx)
		if err != nil {
			return err
		}
		took, deleted = append(took, d.Seconds()), n
	}
	subject := fmt.Sprintf("an endpoint of two leaves a ServicePort with %d pins", sweptPins)
	r.note(subject, "pins deleted", float64(deleted), "")
	r.atMost(subject, "from the change to the last of its pins gone", median(took), "s", 1)
	return nil
}

func (b *bench) sweepOnce(ctx context.Context) (took time.Duration, deleted int, err error) {
	if err := flush(ctx); err != nil {
		return 0, 0, err
	}
	syncer, err := nftables.New(ctx, nftables.Options{Logger: b.log})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = syncer.Close() }()
	state := stickyState(2)
	if _, err := syncer.Reset(ctx, state); err != nil {
		return 0, 0, err
	}
	if _, err := syncer.Sweep(ctx); err != nil {
		return 0, 0, err
	}
	if err := sendFrom(sweptPins); err != nil {
		return 0, 0, err
	}
	var update dataplane.Update
	for _, sp := range state.ServicePorts {
		sp.Endpoints = sp.Endpoints[:1]
		update.Changed = append(update.Changed, sp)
	}
	start := time.Now()
	if _, err := syncer.Sync(ctx, update); err != nil {
		return 0, 0, err
	}
	report, err := syncer.Sweep(ctx)
	return time.Since(start), report.Deleted, err
}

// sendFrom sends the first packet of so many clients to the Service.
func sendFrom(clients int) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	vip := clusterIP(0)
	packet := udpPacket(netip.AddrFrom4([4]byte{10, 200, 0, 0}), vip)
	to := &unix.SockaddrInet4{Addr: vip.As4()}
	for i := range clients {
		// Connection tracking keeps fewer flows than there are clients.
		if i%packetsPerRound == 0 {
			if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
				return fmt.Errorf("flush connection tracking: %w", err)
			}
		}
		binary.BigEndian.PutUint16(packet[14:], uint16(i))
		binary.BigEndian.PutUint16(packet[20:], 1024)
		if err := unix.Sendto(socket, packet, 0, to); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

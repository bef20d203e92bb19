// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// watchBuffer holds the notifications of one bounded transaction many times
// over.
const watchBuffer = 32 << 20

// Watch calls changed soon after another process has changed the tables, as
// "nft flush ruleset" does, until ctx is done. It may be called beside the other
// methods. The kernel notifies; nothing is listed.
func (s *Syncer) Watch(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("watch tables: open netlink socket: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			_ = conn.Close()
		}
	}()
	if err := errors.Join(conn.SetReadBuffer(watchBuffer), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return fmt.Errorf("watch tables: subscribe: %w", err)
	}
	w := watcher{own: s.own}
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.ENOBUFS):
			// Something was missed; it may have been about our tables.
			changed()
			continue
		case err != nil:
			return fmt.Errorf("watch tables: receive: %w", err)
		}
		for _, m := range messages {
			if w.foreign(m) {
				changed()
			}
		}
	}
}

// watcher reads the notifications of transactions: what they changed, then the
// number of the generation that they made.
type watcher struct {
	own *ownership
	// touched says that the transaction under way has changed our tables.
	touched bool
}

// foreign reports whether m ends a transaction of somebody else that has changed
// our tables.
func (w *watcher) foreign(m netlink.Message) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < 4 {
		return false
	}
	if m.Header.Type&0xff != unix.NFT_MSG_NEWGEN {
		w.touched = w.touched || (!w.own.isPort(m.Header.PID) && tableOf(m) == tableName)
		return false
	}
	touched := w.touched
	w.touched = false
	return touched && !w.own.isGeneration(generationOf(m))
}

// tableOf returns the name of the table that a notification is about. It is the
// first attribute of every kind of object.
func tableOf(m netlink.Message) string {
	switch m.Data[0] {
	case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6:
	default:
		return ""
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_TABLE_NAME {
			return ad.String()
		}
	}
	return ""
}

func generationOf(m netlink.Message) uint32 {
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return 0
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		if ad.Type() == unix.NFTA_GEN_ID {
			return ad.Uint32()
		}
	}
	return 0
}

// kept is how many sockets, and how many generations of the nft program, are
// remembered. A notification is read long before there were so many others.
const kept = 64

// ownership knows which transactions are ours: those of our sockets, and the
// generations that the nft program made on our behalf, whose socket we do not
// know. It is safe for concurrent use.
type ownership struct {
	mu          sync.Mutex
	ports       []uint32
	generations []uint32
}

func (o *ownership) addPort(port uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ports = remember(o.ports, port)
}

func (o *ownership) isPort(port uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.ports, port)
}

// during runs the nft program. Questions about generations wait until it is
// known which one it made. Where somebody else has made one meanwhile, none is
// taken for ours: putting the tables right once too often is no harm.
func (o *ownership) during(generation func() (uint32, error), run func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, err := generation()
	if err != nil {
		return err
	}
	if err := run(); err != nil {
		return err
	}
	after, err := generation()
	if err != nil {
		return err
	}
	if after == before+1 {
		o.generations = remember(o.generations, after)
	}
	return nil
}

// remember adds id to the last ones.
func remember(ids []uint32, id uint32) []uint32 {
	ids = append(ids, id)
	return ids[max(0, len(ids)-kept):]
}

// exclude keeps the nft program from being run until the function that it returns is
// called: a transaction in between would be taken for somebody else's.
func (o *ownership) exclude() func() {
	o.mu.Lock()
	return o.mu.Unlock
}

func (o *ownership) isGeneration(id uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.generations, id)
}

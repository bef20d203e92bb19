// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// tries is how often a listing is started again that addresses have changed under.
const tries = 10

// Addresses returns the addresses of all interfaces, sorted, each once.
func Addresses() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for i := 1; i < tries && errors.Is(err, netlink.ErrDumpInterrupted); i++ {
		list, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses of interfaces: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

const (
	// settle is how long changes are collected: an interface that comes up brings
	// several addresses.
	settle = 50 * time.Millisecond
	// relist bounds how long a change that nobody was told of can go unnoticed.
	relist = time.Minute
)

// Watch calls handle with the addresses now, and again whenever they have changed,
// until ctx is done; then it returns the cause. Another error is one of listing
// or of subscribing. Notifications that come while handle runs are one.
func Watch(ctx context.Context, handle func([]netip.Addr)) error {
	w := addressWatch{handle: handle}
	for {
		if err := w.follow(ctx); err != nil {
			return err
		}
	}
}

// addressWatch calls handle with what differs from last.
type addressWatch struct {
	handle func([]netip.Addr)
	last   []netip.Addr
	told   bool
}

// follow tells of changes until the kernel ends the subscription, which it does when
// it had more to send than anybody has read.
func (w *addressWatch) follow(ctx context.Context) error {
	updates := make(chan netlink.AddrUpdate, 64)
	done := make(chan struct{})
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return fmt.Errorf("watch addresses of interfaces: %w", err)
	}
	defer func() {
		close(done)
		// The subscriber may be about to send.
		for range updates {
		}
	}()
	for {
		addrs, err := Addresses()
		if err != nil {
			return err
		}
		if !w.told || !slices.Equal(addrs, w.last) {
			w.handle(addrs)
		}
		w.last, w.told = addrs, true
		subscribed := await(ctx, updates)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !subscribed {
			return nil
		}
	}
}

// await waits for a change, and collects those of the next moment. It returns false if
// there will be no more of them.
func await(ctx context.Context, updates <-chan netlink.AddrUpdate) (subscribed bool) {
	timer := time.NewTimer(relist)
	defer timer.Stop()
	for collecting := false; ; {
		select {
		case <-ctx.Done():
			return updates != nil
		case <-timer.C:
			return updates != nil
		case _, ok := <-updates:
			if !ok {
				updates = nil
			}
			if !collecting {
				collecting = true
				timer.Reset(settle)
			}
		}
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// Addresses returns the addresses of all interfaces, sorted, each once.
func Addresses() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
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
	// relist bounds how long a lost notification can go unnoticed.
	relist = time.Minute
)

// Watch calls handle with the addresses now, and again whenever they have changed,
// until ctx is done.
func Watch(ctx context.Context, handle func([]netip.Addr)) error {
	updates := make(chan netlink.AddrUpdate, 64)
	done := make(chan struct{})
	defer close(done)
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return fmt.Errorf("watch addresses of interfaces: %w", err)
	}
	var last []netip.Addr
	for first := true; ; first = false {
		addrs, err := Addresses()
		if err != nil {
			return err
		}
		if first || !slices.Equal(addrs, last) {
			handle(addrs)
		}
		last = addrs
		if updates = await(ctx, updates); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// await waits for changes and then until there are none for a moment. It returns
// nil if there will be no more notifications, since the kernel had too many to send:
// then the addresses are listed from time to time.
func await(ctx context.Context, updates chan netlink.AddrUpdate) chan netlink.AddrUpdate {
	timer := time.NewTimer(relist)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return updates
		case <-timer.C:
			return updates
		case _, ok := <-updates:
			if !ok {
				return nil
			}
			timer.Reset(settle)
		}
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/veridict/veridict/dataplane/host"
)

// ownLink adds an interface to the namespace of the process. It vanishes with the test.
func ownLink(t *testing.T, name string) netlink.Link {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	return link
}

func addAddress(t *testing.T, link netlink.Link, addr netip.Addr) {
	t.Helper()
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, addr.BitLen()))}); err != nil {
		t.Fatal(err)
	}
}

func delAddress(t *testing.T, link netlink.Link, addr netip.Addr) {
	t.Helper()
	if err := netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, addr.BitLen()))}); err != nil {
		t.Fatal(err)
	}
}

func TestHostAddresses(t *testing.T) {
	start(t)
	link := ownLink(t, "addresses")
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, addr := range []netip.Addr{v6, v4} {
		addAddress(t, link, addr)
	}
	addrs, err := host.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(addrs, v4) || !slices.Contains(addrs, v6) || !slices.IsSortedFunc(addrs, netip.Addr.Compare) {
		t.Errorf("%v, want %s and %s among them, sorted", addrs, v4, v6)
	}
}

// addressWatch is a watch whose handler is held up after each list until the test
// waits for the next.
type addressWatch struct {
	t      *testing.T
	lists  chan []netip.Addr
	resume chan struct{}
	held   bool
}

func watchAddresses(t *testing.T) *addressWatch {
	t.Helper()
	w := &addressWatch{t: t, lists: make(chan []netip.Addr), resume: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- host.Watch(ctx, func(addrs []netip.Addr) {
			select {
			case w.lists <- addrs:
			case <-ctx.Done():
			}
			select {
			case <-w.resume:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return w
}

// until waits for a list with the address, or without it.
func (w *addressWatch) until(addr netip.Addr, there bool) {
	w.t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for {
		if w.held {
			w.resume <- struct{}{}
		}
		select {
		case addrs := <-w.lists:
			w.held = true
			if slices.Contains(addrs, addr) == there {
				return
			}
		case <-limit.C:
			w.held = false
			w.t.Fatalf("no list with %s there: %v", addr, there)
		}
	}
}

func TestHostWatch(t *testing.T) {
	start(t)
	link := ownLink(t, "watched")
	w := watchAddresses(t)
	for _, addr := range []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")} {
		w.until(addr, false)
		addAddress(t, link, addr)
		w.until(addr, true)
		delAddress(t, link, addr)
	}
}

// The kernel drops notifications that nobody reads in time; the watch goes on.
func TestHostWatchOutlivesLostNotifications(t *testing.T) {
	start(t)
	link := ownLink(t, "busy")
	w := watchAddresses(t)
	addr := netip.MustParseAddr("192.0.2.3")
	w.until(addr, false)
	for range 3000 {
		addAddress(t, link, addr)
		delAddress(t, link, addr)
	}
	addAddress(t, link, addr)
	w.until(addr, true)
	delAddress(t, link, addr)
	w.until(addr, false)
}

// The timeouts of connection tracking are those of the namespace; the limit is the
// whole machine's and stays.
func TestHostConntrack(t *testing.T) {
	start(t)
	const closeWait = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
	const limit = "/proc/sys/net/netfilter/nf_conntrack_max"
	files := host.OSFiles{}
	read := func(path string) string {
		text, err := files.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := read(limit)
	want := host.Conntrack{MaxPerCore: 1 << 19, TCPCloseWait: 3600 * time.Second}
	if err := want.Apply(files, 2, false, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	equal(t, "time in CLOSE_WAIT", read(closeWait), "3600")
	equal(t, "limit", read(limit), before)
}

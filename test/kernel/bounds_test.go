// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// monitor counts the elements of each transaction, as the kernel announces them.
type monitor struct {
	conn    *mdnetlink.Conn
	done    chan error
	seen    atomic.Int64
	largest atomic.Int64
}

func newMonitor(t testing.TB) *monitor {
	t.Helper()
	conn, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.SetReadBuffer(256<<20), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		t.Fatal(err)
	}
	m := &monitor{conn: conn, done: make(chan error, 1)}
	go func() { m.done <- m.run() }()
	t.Cleanup(func() { conn.Close() })
	return m
}

func (m *monitor) run() error {
	elements := int64(0)
	for {
		messages, err := m.conn.Receive()
		if err != nil {
			return err
		}
		for _, message := range messages {
			switch message.Header.Type & 0xff {
			case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
				elements += countNested(message.Data[4:])
			case unix.NFT_MSG_NEWGEN:
				m.largest.Store(max(m.largest.Load(), elements))
				m.seen.Add(elements)
				elements = 0
			}
		}
	}
}

// countNested counts the elements of a notification.
func countNested(attrs []byte) int64 {
	n := int64(0)
	ad, err := mdnetlink.NewAttributeDecoder(attrs)
	if err != nil {
		return 0
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			ad.Nested(func(items *mdnetlink.AttributeDecoder) error {
				for items.Next() {
					n++
				}
				return nil
			})
		}
	}
	return n
}

// check waits until all elements have been announced, and expects no transaction
// to have had more than limit.
func (m *monitor) check(t testing.TB, sent, limit int) {
	t.Helper()
	await(t, func() bool { return m.seen.Load() >= int64(sent) })
	if n := m.seen.Load(); n != int64(sent) {
		t.Errorf("the kernel announced %d elements, the reports say %d", n, sent)
	}
	if largest := m.largest.Load(); largest > int64(limit) {
		t.Errorf("a transaction had %d elements, want at most %d", largest, limit)
	}
	select {
	case err := <-m.done:
		t.Fatal("the monitor ended:", err)
	default:
	}
}

// manyServices returns n Services of 0 to 5 endpoints.
func manyServices(n int) dataplane.State {
	state := stateOf(clusterSettings())
	for i := range n {
		sp := port("s"+strconv.Itoa(i), netip.AddrPortFrom(nth(netip.MustParseAddr("10.97.1.0"), i), 80), dataplane.TCP,
			endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 1+i%1000*6), 8080), i%6)...)
		state.ServicePorts[sp.Key] = sp
	}
	return state
}

func updateTo(state dataplane.State) dataplane.Update {
	var update dataplane.Update
	for _, sp := range state.ServicePorts {
		update.Changed = append(update.Changed, sp)
	}
	return update
}

// TestTransactionsAreBounded replaces all endpoints of all Services, which needs
// two operations for a row, with small and with default transactions.
func TestTransactionsAreBounded(t *testing.T) {
	for _, limit := range []int{5, 64, 4000} {
		t.Run(strconv.Itoa(limit), func(t *testing.T) {
			start(t)
			m := newMonitor(t)
			clock := newClock()
			options := quiet(nftables.MarkFree)
			options.Now, options.BatchElements = clock.Now, limit
			s := newSyncer(t, options)
			state, sent := manyServices(1200), 0
			sent += mustReset(t, s, state).ElementsSent
			for i := range 4 {
				next := stateOf(state.Settings)
				for key, sp := range state.ServicePorts {
					n := (len(sp.Endpoints) + i) % 6
					sp.Endpoints = port("", netip.AddrPortFrom(sp.ClusterIP, 80), dataplane.TCP,
						endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 10_000*i+n), 8080), n)...).Endpoints
					next.ServicePorts[key] = sp
				}
				state = next
				sent += mustSync(t, s, updateTo(state)).ElementsSent
			}
			for {
				report := mustSync(t, s, dataplane.Update{})
				sent += report.ElementsSent
				if report.Due.IsZero() {
					break
				}
				clock.now = report.Due
			}
			restarted := newSyncer(t, options)
			sent += mustReset(t, restarted, manyServices(600)).ElementsSent
			m.check(t, sent, limit)
		})
	}
}

// TestObjectsAreConstant counts chains, sets and maps.
func TestObjectsAreConstant(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		s := newSyncer(t, quiet(layout))
		few := mustReset(t, s, manyServices(200)).Programmed
		many := mustReset(t, s, manyServices(2000)).Programmed
		if few.ServicePorts != 200 || many.ServicePorts != 2000 {
			t.Errorf("%d and %d ServicePorts, want 200 and 2000", few.ServicePorts, many.ServicePorts)
		}
		equal(t, "chains", many.Chains, few.Chains)
		equal(t, "maps", many.Maps, few.Maps)
		found := objectCounts(t)
		equal(t, "chains in the kernel", found.Chains, many.Chains)
		equal(t, "maps in the kernel", found.Maps, many.Maps)
	})
}

func TestMostEndpoints(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		m := newMonitor(t)
		clock := newClock()
		options := quiet(layout)
		options.Now = clock.Now
		s := newSyncer(t, options)
		vip := netip.MustParseAddrPort("10.97.0.1:80")
		all := append(endpointsFrom(netip.AddrPortFrom(endpoints4.Addr(), 8080), 1<<15), endpointsFrom(netip.AddrPortFrom(endpoints4.Addr(), 8081), 1<<15)...)
		all = all[:dataplane.MaxBuckets]
		state := stateOf(clusterSettings(), port("large", vip, dataplane.TCP, all[:3]...))
		sent := mustReset(t, s, state).ElementsSent
		large := port("large", vip, dataplane.TCP, all...)
		report := mustSync(t, s, dataplane.Update{Changed: []dataplane.ServicePort{large}})
		sent += report.ElementsSent
		t.Logf("%d endpoints: %d elements in %d transactions, the longest %v", len(all), report.ElementsSent, report.Transactions, report.LongestCommit)
		verify(t, layout, stateOf(clusterSettings(), large))

		small := port("large", vip, dataplane.TCP, all[40_000:40_002]...)
		for update := (dataplane.Update{Changed: []dataplane.ServicePort{small}}); ; update = (dataplane.Update{}) {
			report := mustSync(t, s, update)
			sent += report.ElementsSent
			if report.Due.IsZero() {
				break
			}
			clock.now = report.Due
		}
		verify(t, layout, stateOf(clusterSettings(), small))
		m.check(t, sent, 4000)
	})
}

// TestAllEndpointsGetTraffic sends so many flows that an endpoint which has its
// share is missed once in a million runs.
func TestAllEndpointsGetTraffic(t *testing.T) {
	const n, flows = 2500, 60_000
	start(t)
	cluster := churnCluster(t)
	vip := netip.AddrPortFrom(nth(localVIPs4.Addr(), 1), udpPort)
	endpoints := endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 1), udpTarget), n)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), port("large", vip, dataplane.UDP, endpoints...)))
	nft(t, watcher+`
		add set inet watcher seen { type ipv4_addr; size 65535; flags dynamic; }
		insert rule inet watcher forward udp dport 5300 add @seen { ip daddr }`)
	l, ctx := newLoad(t)
	l.sendDatagrams(ctx, cluster, cluster.client.Addrs[0], vip)
	await(t, func() bool { return l.datagrams.Load() > flows })
	if err := l.end(); err != nil {
		t.Fatal(err)
	}
	seen := listedElements(list(t, "set", "inet", "watcher", "seen"))
	equal(t, "endpoints that got traffic", seen, n)
	equal(t, "datagrams that were not translated", counted(t, "arrived")-counted(t, "translated"), 0)
}

// TestRejectedIsReported makes a set full. Who finds no room is reported, all
// others are served, and who waits gets the room that is made.
func TestRejectedIsReported(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		nft(t, "table ip veridict { set cluster-ips { typeof ip daddr; size 6; }; }")
		state := stateOf(clusterSettings())
		for i := range 8 {
			sp := port(fmt.Sprint("s", i), netip.AddrPortFrom(nth(netip.MustParseAddr("10.96.0.1"), i), 80), dataplane.TCP,
				endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 10*i), 8080), i)...)
			state.ServicePorts[sp.Key] = sp
		}
		clock := newClock()
		options := quiet(layout)
		options.Now = clock.Now
		s := newSyncer(t, options)
		report := mustReset(t, s, state)
		served := withPort(state)
		for _, r := range report.Rejected {
			if !errors.Is(r.Err, unix.ENFILE) {
				t.Errorf("%s: got error %v, want ENFILE", r.Key, r.Err)
			}
			delete(served.ServicePorts, r.Key)
		}
		equal(t, "rejected", len(report.Rejected), 2)
		equal(t, "programmed", report.Programmed.ServicePorts, 6)
		if report.Due.IsZero() {
			t.Error("the rejected are not due for another try")
		}
		clock.advance(200 * time.Millisecond)
		mustSync(t, s, dataplane.Update{})
		verify(t, layout, served)

		var gone []dataplane.ServicePortKey
		for key := range served.ServicePorts {
			if len(gone) < 2 {
				gone = append(gone, key)
				delete(state.ServicePorts, key)
			}
		}
		report = mustSync(t, s, dataplane.Update{Removed: gone})
		for i := 0; i < 10 && !report.Due.IsZero(); i++ {
			clock.now = report.Due
			report = mustSync(t, s, dataplane.Update{})
		}
		equal(t, "rejected when there was room", len(report.Rejected), 0)
		settle(t, s, clock)
		verify(t, layout, state)
	})
}

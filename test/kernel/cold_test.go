// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// TestColdLoadServesWholeServices connects to all VIPs, again and again, while
// they are programmed in many small transactions. A VIP is served or it is not:
// once a connection has succeeded, none fails any more, and no lookup ever
// misses its row.
func TestColdLoadServesWholeServices(t *testing.T) {
	const services, before = 400, 40
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		cluster := churnCluster(t)
		l, ctx := newLoad(t)
		l.accept(t, cluster)
		ports := make([]dataplane.ServicePort, services)
		for i := range ports {
			ports[i] = port("s"+netip.AddrPortFrom(nth(localVIPs4.Addr(), i+1), 80).String(),
				netip.AddrPortFrom(nth(localVIPs4.Addr(), i+1), 80), dataplane.TCP,
				endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 10*i+1), tcpTarget), 1+i%7)...)
		}
		options := quiet(layout)
		options.BatchElements = 20
		s := newSyncer(t, options)
		state := stateOf(clusterSettings(), ports[:before]...)
		mustReset(t, s, state)

		var rounds, failures, lost atomic.Int64
		l.senders.Go(func() error {
			served := make([]bool, services)
			for ctx.Err() == nil {
				for i := range ports {
					source := netip.AddrPortFrom(nth(sources4.Addr(), 1+int(rounds.Load())/50), 0)
					err := connectOnce(sockaddr(source), sockaddr(netip.AddrPortFrom(ports[i].ClusterIP, ports[i].Port)))
					switch {
					case err == nil:
						served[i] = true
					case !errors.Is(err, unix.ECONNREFUSED):
						return err
					case served[i] || i < before:
						lost.Add(1)
					default:
						failures.Add(1)
					}
				}
				rounds.Add(1)
			}
			return nil
		})
		await(t, func() bool { return rounds.Load() > 0 })
		report := mustSync(t, s, dataplane.Update{Changed: ports[before:]})
		programmed := rounds.Load()
		await(t, func() bool { return rounds.Load() > programmed+2 })
		if err := l.end(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d rounds, %d of them until all was programmed in %d transactions; %d connections too early",
			rounds.Load(), programmed, report.Transactions, failures.Load())
		equal(t, "connections that failed to VIPs that were served", lost.Load(), int64(0))
		equal(t, "lookups that missed their row", missed(t), 0)
		if failures.Load() == 0 {
			t.Error("no VIP was tried before it was served")
		}
		verify(t, layout, stateOf(clusterSettings(), ports...))
	})
}

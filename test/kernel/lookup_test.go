// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"testing"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// TestSecondLookupSavesConnections shows what the second lookup in chain services
// is for: on kernels whose lookups may miss what a commit replaces, flows leave
// untranslated without it. On others it makes no difference.
func TestSecondLookupSavesConnections(t *testing.T) {
	const lookUp = "add rule ip veridict services ip daddr . meta l4proto . th dport vmap @service-ips;"
	races := lookupsRaceCommits(t)
	for _, test := range []struct {
		name, rules string
		// lost says whether some flow is to be lost.
		lost bool
	}{
		{"once", lookUp, races},
		{"twice", lookUp + lookUp, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			start(t)
			cluster := churnCluster(t)
			nft(t, watcher)
			c := newChurn(t, quiet(nftables.MarkFree), dataplane.IPv4)
			nft(t, "flush chain ip veridict services;"+test.rules)

			// The race is met once in some hundred thousand flows.
			limit := int64(100_000)
			switch {
			case test.lost:
				limit = 10_000_000
			case races:
				limit = 1_000_000
			}
			l, ctx := newLoad(t)
			l.sendDatagrams(ctx, cluster, cluster.client.Addrs[0], netip.AddrPortFrom(c.vip, udpPort))
			for l.datagrams.Load() < limit && counted(t, "escaped") == 0 {
				for range 100 {
					c.flip(2, 1)
				}
			}
			if err := l.end(); err != nil {
				t.Fatal(err)
			}
			escaped := counted(t, "escaped")
			t.Logf("%d flows, %d flips, %d missed, %d lost", l.datagrams.Load(), c.flips, missed(t), escaped)
			if lost := escaped > 0; lost != test.lost {
				t.Errorf("%d datagrams still went to the VIP; want some: %t", escaped, test.lost)
			}
		})
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// overseer looks at the fake after every transaction. A lookup that began before
// the transaction, or less than grace before it, must still find its row.
type overseer struct {
	fake   *Fake
	layout Layout
	clock  *clock
	grace  time.Duration
	// drawn are the numbers of buckets that lookups may have drawn from.
	drawn map[dataplane.VIP][]drawn
	// violations are what was seen, in order.
	violations []string
}

// drawn is a number of buckets that a verdict had until a time.
type drawn struct {
	n     int
	until time.Time
}

func oversee(fake *Fake, layout Layout, clock *clock, grace time.Duration) *overseer {
	o := &overseer{fake: fake, layout: layout, clock: clock, grace: grace, drawn: make(map[dataplane.VIP][]drawn)}
	fake.Committed = o.look
	return o
}

// published returns the buckets and rows of each VIP in a table of the fake.
func published(table *fakeTable, layout Layout) (sizes map[dataplane.VIP]int, rows map[dataplane.VIP]map[uint32]bool) {
	sizes, rows = make(map[dataplane.VIP]int), make(map[dataplane.VIP]map[uint32]bool)
	for name, set := range table.sets {
		for _, e := range set.elements {
			switch {
			case name == serviceIPs:
				vip, _ := parseVIP(table.family, e.key)
				sizes[vip], _ = dispatchSize(strings.TrimPrefix(e.verdict, "goto "))
			case strings.HasPrefix(name, markedEndpoints):
				vip, bucket, _, _ := layout.parseRow(table.family, e)
				if rows[vip] == nil {
					rows[vip] = make(map[uint32]bool)
				}
				rows[vip][bucket] = true
			}
		}
	}
	return sizes, rows
}

func (o *overseer) look(c Commit) {
	sizes, rows := published(o.fake.tables[c.Family], o.layout)
	now := o.clock.now()
	for vip, n := range sizes {
		o.drawn[vip] = append(o.drawn[vip], drawn{n: n, until: now.Add(o.grace)})
	}
	for vip, list := range o.drawn {
		if dataplane.FamilyOf(vip.Addr) != c.Family {
			continue
		}
		for _, d := range list {
			if _, current := sizes[vip]; !d.until.After(now) && !(current && sizes[vip] == d.n) {
				continue
			}
			for bucket := range uint32(d.n) {
				if !rows[vip][bucket] {
					o.violations = append(o.violations, fmt.Sprintf("transaction %d: %s: no row for bucket %d of %d", c.Number, vip, bucket, d.n))
				}
			}
		}
	}
}

// forget is for tables that were taken away.
func (o *overseer) forget() { clear(o.drawn) }

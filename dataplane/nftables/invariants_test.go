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
	// current are the numbers of buckets that verdicts draw from.
	current map[dataplane.VIP]int
	// drawn says until when a lookup of a VIP may be under way that draws from
	// that number of buckets.
	drawn map[drawn]time.Time
	// violations are what was seen, in order.
	violations []string
}

type drawn struct {
	vip dataplane.VIP
	n   int
}

func oversee(fake *Fake, layout Layout, clock *clock, grace time.Duration) *overseer {
	o := &overseer{fake: fake, layout: layout, clock: clock, grace: grace}
	o.forget()
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
	until := o.clock.now().Add(o.grace)
	for vip, n := range o.current {
		if dataplane.FamilyOf(vip.Addr) == c.Family {
			o.drawn[drawn{vip, n}] = until
			delete(o.current, vip)
		}
	}
	for vip, n := range sizes {
		o.current[vip] = n
		o.drawn[drawn{vip, n}] = until
	}
	for d, until := range o.drawn {
		if !until.After(o.clock.now()) {
			delete(o.drawn, d)
			continue
		}
		if dataplane.FamilyOf(d.vip.Addr) != c.Family {
			continue
		}
		for bucket := range uint32(d.n) {
			if !rows[d.vip][bucket] {
				o.violations = append(o.violations, fmt.Sprintf("transaction %d: %s: no row for bucket %d of %d", c.Number, d.vip, bucket, d.n))
			}
		}
	}
}

// forget is for tables that were taken away.
func (o *overseer) forget() {
	o.current, o.drawn = make(map[dataplane.VIP]int), make(map[drawn]time.Time)
}

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
	current map[drawing]int
	// drawn says until when a lookup of a VIP may be under way that draws from
	// that number of buckets.
	drawn map[drawn]time.Time
	// violations are what was seen, in order.
	violations []string
}

type drawn struct {
	drawing
	n int
}

func oversee(fake *Fake, layout Layout, clock *clock, grace time.Duration) *overseer {
	o := &overseer{fake: fake, layout: layout, clock: clock, grace: grace}
	o.forget()
	fake.Committed = o.look
	return o
}

// drawing is a frontend in one scope.
type drawing struct {
	family dataplane.Family
	vip    dataplane.VIP
	in     scope
}

// published returns the buckets and rows of each frontend in a table of the fake.
func published(table *fakeTable, layout Layout) (sizes map[drawing]int, rows map[drawing]map[uint32]bool) {
	sizes, rows = make(map[drawing]int), make(map[drawing]map[uint32]bool)
	for name, set := range table.sets {
		for _, e := range set.elements {
			switch v, ok := parseVariant(chainOf(e.verdict)); {
			case ok && v.kind == dispatchVariant:
				vip, _ := parseVIP(table.family, e.set, e.key)
				sizes[drawing{table.family.id, vip, v.scope}] = int(v.n)
			case strings.HasPrefix(name, endpointsMap), strings.HasPrefix(name, nodePortEndpointsMap):
				vip, in, bucket, _, _ := layout.parseRow(table.family, e)
				d := drawing{table.family.id, vip, in}
				if rows[d] == nil {
					rows[d] = make(map[uint32]bool)
				}
				rows[d][bucket] = true
			}
		}
	}
	return sizes, rows
}

func (o *overseer) look(c Commit) {
	sizes, rows := published(o.fake.tables[c.Family], o.layout)
	until := o.clock.now().Add(o.grace)
	for d, n := range o.current {
		if d.family == c.Family {
			o.drawn[drawn{d, n}] = until
			delete(o.current, d)
		}
	}
	for d, n := range sizes {
		o.current[d] = n
		o.drawn[drawn{d, n}] = until
	}
	for d, until := range o.drawn {
		if !until.After(o.clock.now()) {
			delete(o.drawn, d)
			continue
		}
		if d.family != c.Family {
			continue
		}
		for bucket := range uint32(d.n) {
			if !rows[d.drawing][bucket] {
				o.violations = append(o.violations, fmt.Sprintf("transaction %d: %s: no row for bucket %d of %d", c.Number, d.vip, bucket, d.n))
			}
		}
	}
}

// forget is for tables that were taken away.
func (o *overseer) forget() {
	o.current, o.drawn = make(map[drawing]int), make(map[drawn]time.Time)
}

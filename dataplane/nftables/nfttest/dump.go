// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

// Dump writes a table as text, in an order of its own. Two tables that do the
// same to packets have the same text whatever their history: endpoints are
// listed by VIP without their buckets, dispatch chains that no element leads to
// are left out. Rows in buckets that are not drawn are marked as surplus. A nil
// table is empty.
func Dump(table *knftables.FakeTable) string {
	if table == nil {
		return ""
	}
	d := &dumper{sizes: make(map[string]int)}
	for _, m := range table.Maps {
		d.readVerdicts(m.Elements)
	}
	for _, name := range slices.Sorted(maps.Keys(table.Sets)) {
		set := table.Sets[name]
		d.lines(fmt.Sprintf("set %s { %s }", name, cmp.Or(set.TypeOf, set.Type)), elementLines(set.Elements))
	}
	for _, name := range slices.Sorted(maps.Keys(table.Maps)) {
		m := table.Maps[name]
		lines := elementLines(m.Elements)
		if suffix, ok := strings.CutPrefix(name, "endpoints"); ok {
			lines = d.rows(suffix, m.Elements)
		}
		d.lines(fmt.Sprintf("map %s { %s }", name, cmp.Or(m.TypeOf, m.Type)), lines)
	}
	for _, name := range slices.Sorted(maps.Keys(table.Chains)) {
		if strings.HasPrefix(name, dispatchPrefix) && !slices.Contains(d.used, name) && dispatchSize(name) > 0 {
			continue
		}
		d.chain(table.Chains[name])
	}
	return d.text.String()
}

const dispatchPrefix = "cluster-"

// dispatchSize returns the number of buckets that a dispatch chain draws from, 0
// if the chain is none.
func dispatchSize(chain string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(chain, dispatchPrefix))
	return n
}

type dumper struct {
	text strings.Builder
	// sizes are the numbers of buckets by VIP.
	sizes map[string]int
	// used are the dispatch chains that elements lead to.
	used []string
}

func (d *dumper) readVerdicts(elements []*knftables.Element) {
	for _, e := range elements {
		if chain, ok := strings.CutPrefix(e.Value[0], "goto "); ok && dispatchSize(chain) > 0 {
			d.sizes[strings.Join(e.Key, separator)] = dispatchSize(chain)
			d.used = append(d.used, chain)
		}
	}
}

func (d *dumper) lines(title string, lines []string) {
	slices.Sort(lines)
	fmt.Fprintln(&d.text, title)
	for _, line := range lines {
		fmt.Fprintln(&d.text, "\t"+line)
	}
}

func (d *dumper) chain(chain *knftables.FakeChain) {
	title := "chain " + chain.Name
	if chain.Type != nil {
		title += fmt.Sprintf(" { type %s hook %s priority %s }", *chain.Type, *chain.Hook, *chain.Priority)
	}
	fmt.Fprintln(&d.text, title)
	for _, rule := range chain.Rules {
		fmt.Fprintln(&d.text, "\t"+rule.Rule)
	}
}

func elementLines(elements []*knftables.Element) []string {
	var lines []string
	for _, e := range elements {
		line := strings.Join(e.Key, separator)
		if len(e.Value) > 0 {
			line += " : " + strings.Join(e.Value, separator)
		}
		lines = append(lines, line)
	}
	return lines
}

// rows writes the rows of one endpoints map. Suffix is "-" and the protocol
// where the map is that of one protocol.
func (d *dumper) rows(suffix string, elements []*knftables.Element) []string {
	var lines []string
	for _, e := range elements {
		last := len(e.Key) - 1
		vip := slices.Clone(e.Key[:last])
		if suffix != "" {
			vip = slices.Insert(vip, 1, suffix[1:])
		}
		line := strings.Join(vip, separator) + " : " + strings.Join(e.Value, separator)
		bucket, err := strconv.Atoi(e.Key[last])
		if err != nil || bucket >= d.sizes[strings.Join(vip, separator)] {
			line += " (surplus, bucket " + e.Key[last] + ")"
		}
		lines = append(lines, line)
	}
	return lines
}

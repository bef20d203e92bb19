// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"

	"github.com/veridict/veridict/dataplane"
)

// Render writes the tables of the state as text that nft -f takes, elements
// included. It replaces tables that are there. The same state gives the same
// text. The tables of the kernel are not looked at.
func Render(w io.Writer, options Options, state dataplane.State) error {
	options = options.withDefaults()
	out := bufio.NewWriter(w)
	list := sorted(state)
	for _, f := range families() {
		renderTable(out, options.ruleset(f, &state.Settings), options.Layout, ofFamily(list, f))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("render: %w", err)
	}
	return nil
}

// sorted returns the ServicePorts in the order of their VIPs.
func sorted(state dataplane.State) []dataplane.ServicePort {
	list := make([]dataplane.ServicePort, 0, len(state.ServicePorts))
	for _, sp := range state.ServicePorts {
		list = append(list, sp)
	}
	slices.SortFunc(list, func(a, b dataplane.ServicePort) int { return compareVIPs(a.VIP(), b.VIP()) })
	return list
}

// ofFamily returns the ServicePorts of one family of a sorted list: IPv4
// addresses sort before IPv6 addresses.
func ofFamily(list []dataplane.ServicePort, f family) []dataplane.ServicePort {
	first := sort.Search(len(list), func(i int) bool { return list[i].Key.Family >= f.id })
	end := sort.Search(len(list), func(i int) bool { return list[i].Key.Family > f.id })
	return list[first:end]
}

func renderTable(out *bufio.Writer, r ruleset, layout Layout, list []dataplane.ServicePort) {
	f := r.family
	// Whatever is in the table goes in the same transaction, so that loading the
	// text is the same whether the table was there or not.
	fmt.Fprintf(out, "table %[1]s %[2]s\ndelete table %[1]s %[2]s\ntable %[1]s %[2]s {\n", f.ip, tableName)
	for _, set := range r.sets {
		renderSet(out, f, layout, set, list)
	}
	for _, chain := range r.regular() {
		renderChain(out, chain)
	}
	for _, n := range dispatchSizes(list) {
		renderChain(out, layout.dispatchChain(f, n))
	}
	for _, chain := range r.base() {
		renderChain(out, chain)
	}
	fmt.Fprintln(out, "}")
}

// dispatchSizes returns the numbers of endpoints that occur.
func dispatchSizes(list []dataplane.ServicePort) []int {
	sizes := make(map[int]struct{})
	for i := range list {
		if n := len(list[i].Endpoints); n > 0 {
			sizes[n] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(sizes))
}

func renderSet(out *bufio.Writer, f family, layout Layout, set setDecl, list []dataplane.ServicePort) {
	keyword := "map"
	if set.kind == plainSet {
		keyword = "set"
	}
	fmt.Fprintf(out, "\t%s %s {\n", keyword, set.name)
	if set.typeOf != "" {
		fmt.Fprintf(out, "\t\ttypeof %s\n", set.typeOf)
	} else {
		fmt.Fprintf(out, "\t\ttype %s\n", set.typ)
	}
	separator := "\t\telements = {\n\t\t\t"
	seen := make(map[string]struct{})
	for i := range list {
		for _, e := range layout.elementsOf(&list[i]) {
			if e.set != set.name {
				continue
			}
			if set.kind == plainSet {
				if _, ok := seen[e.key]; ok {
					continue
				}
				seen[e.key] = struct{}{}
			}
			fmt.Fprint(out, separator, layout.text(f, e))
			separator = ",\n\t\t\t"
		}
	}
	if separator[0] == ',' {
		fmt.Fprint(out, "\n\t\t}\n")
	}
	fmt.Fprint(out, "\t}\n\n")
}

// elementsOf returns all elements that a ServicePort needs, its endpoints in
// buckets of their order.
func (l Layout) elementsOf(sp *dataplane.ServicePort) []element {
	vip := sp.VIP()
	list := []element{clusterIPElement(vip.Addr)}
	if len(sp.Endpoints) == 0 {
		return append(list, rejectElement(vip))
	}
	list = append(list, serviceElement(vip, len(sp.Endpoints)))
	for i, ep := range sp.Endpoints {
		list = append(list, l.row(vip, uint32(i), ep.Addr))
		if ep.Local {
			list = append(list, hairpin{ep.Addr, vip.Protocol}.element())
		}
	}
	return list
}

func renderChain(out *bufio.Writer, chain chainDecl) {
	fmt.Fprintf(out, "\tchain %s {\n", chain.name)
	if b := chain.base; b != nil {
		fmt.Fprintf(out, "\t\ttype %s hook %s priority %d; policy accept;\n", b.typ, b.hook, b.priority)
	}
	for _, rule := range chain.rules {
		fmt.Fprintf(out, "\t\t%s\n", rule)
	}
	fmt.Fprint(out, "\t}\n\n")
}

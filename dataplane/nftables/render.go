// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

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
		w := newWanted(f, options.Layout, ofFamily(list, f), newAffinityIDs())
		renderTable(out, options.ruleset(f, &state.Settings), w, &state.Settings)
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

func renderTable(out *bufio.Writer, r ruleset, w *wanted, settings *dataplane.Settings) {
	f := r.family
	// Whatever is in the table goes in the same transaction, so that loading the
	// text is the same whether the table was there or not.
	fmt.Fprintf(out, "table %[1]s %[2]s\ndelete table %[1]s %[2]s\ntable %[1]s %[2]s {\n", f.ip, tableName)
	elements := w.elements(settings)
	for _, set := range r.sets {
		renderSet(out, f, set, elements[set.name])
	}
	for _, chain := range slices.Concat(r.regular(), w.chains(), r.base()) {
		renderChain(out, f, chain)
	}
	fmt.Fprintln(out, "}")
}

func renderSet(out *bufio.Writer, f family, set setDecl, elements []element) {
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
	if set.size > 0 {
		fmt.Fprintf(out, "\t\tsize %d\n", set.size)
	}
	if flags := set.flags(); len(flags) > 0 {
		words := make([]string, len(flags))
		for i, flag := range flags {
			words[i] = string(flag)
		}
		fmt.Fprintf(out, "\t\tflags %s\n", strings.Join(words, ","))
	}
	separator := "\t\telements = {\n\t\t\t"
	for _, e := range elements {
		fmt.Fprint(out, separator, e.text(f))
		separator = ",\n\t\t\t"
	}
	if separator[0] == ',' {
		fmt.Fprint(out, "\n\t\t}\n")
	}
	fmt.Fprint(out, "\t}\n\n")
}

func renderChain(out *bufio.Writer, f family, chain chainDecl) {
	fmt.Fprintf(out, "\tchain %s {\n", chain.name)
	if chain.byNetlink(f) {
		fmt.Fprintln(out, "\t\t# nft 1.0.6 ends with an assertion when it reads these rules; 1.1.7 takes them")
	}
	if b := chain.base; b != nil {
		fmt.Fprintf(out, "\t\ttype %s hook %s priority %d; policy accept;\n", b.typ, b.hook, b.priority)
	}
	for _, rule := range chain.rules {
		fmt.Fprintf(out, "\t\t%s\n", rule)
	}
	fmt.Fprint(out, "\t}\n\n")
}

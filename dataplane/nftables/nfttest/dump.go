// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

// Dump writes a table as text, in an order of its own. Two tables that do the
// same to packets have the same text whatever their history: endpoints are
// listed by VIP without their buckets, affinity ids are replaced by the VIPs that
// have them, dispatch, affinity and pin chains that no element leads to are left
// out. Rows in buckets that are not drawn are marked as surplus. A nil
// table is empty.
func Dump(table *knftables.FakeTable) string {
	if table == nil {
		return ""
	}
	d := &dumper{
		patterns: newPatterns(), sizes: make(map[drawing]int),
		used: make(map[string]bool), owners: make(map[string]string),
	}
	for _, m := range table.Maps {
		d.readVerdicts(m.Elements)
	}
	for _, name := range slices.Sorted(maps.Keys(table.Sets)) {
		set := table.Sets[name]
		d.lines(fmt.Sprintf("set %s { %s }", name, cmp.Or(set.TypeOf, set.Type)), d.elementLines(set.Elements))
	}
	for _, name := range slices.Sorted(maps.Keys(table.Maps)) {
		m := table.Maps[name]
		lines := d.elementLines(m.Elements)
		if rows := d.rowMap.FindStringSubmatch(name); rows != nil {
			lines = d.rows(rows[1] == "", rows[2], m.Elements)
		}
		d.lines(fmt.Sprintf("map %s { %s }", name, cmp.Or(m.TypeOf, m.Type)), lines)
	}
	var chains []string
	for name, chain := range table.Chains {
		if !d.isVariant(name) || d.used[name] {
			chains = append(chains, d.chain(chain))
		}
	}
	slices.Sort(chains)
	return d.text.String() + strings.Join(chains, "")
}

// Names of which there can be many, and how they are written: a dispatch chain with
// its number of buckets, a chain with the affinity id of a ServicePort, a chain that
// writes pins for a time, and a map of rows with its protocol.
type patterns struct{ dispatch, affinity, pin, rowMap, constant *regexp.Regexp }

func newPatterns() patterns {
	return patterns{
		dispatch: regexp.MustCompile(`^(?:cluster|(?:nodeport-)?local|nodeport)(?:-hash)?-([0-9]+)$`),
		affinity: regexp.MustCompile(`^((?:affinity|pin)-(?:local-)?(?:tcp|udp|sctp)-)([0-9]+)((?:-[0-9]+s)?)$`),
		pin:      regexp.MustCompile(`^pin-[0-9]+s$`),
		constant: regexp.MustCompile(`(numgen inc mod 1 offset )[0-9]+`),
		rowMap:   regexp.MustCompile(`^(nodeport-)?endpoints-?(tcp|udp|sctp|)$`),
	}
}

// localBucket is the first bucket of local endpoints.
const localBucket = 65536

type dumper struct {
	patterns
	text strings.Builder
	// sizes are the numbers of buckets by VIP and scope.
	sizes map[drawing]int
	// used are the chains that elements lead to.
	used map[string]bool
	// owners are the first VIPs that lead to a chain with an affinity id: any id will
	// do.
	owners map[string]string
}

// drawing is a VIP, and whether local endpoints are drawn.
type drawing struct {
	vip   string
	local bool
}

func (d *dumper) isVariant(name string) bool {
	return d.dispatch.MatchString(name) || d.affinity.MatchString(name) || d.pin.MatchString(name)
}

func (d *dumper) readVerdicts(elements []*knftables.Element) {
	for _, e := range elements {
		words := strings.Fields(e.Value[0])
		chain, key := words[len(words)-1], strings.Join(e.Key, separator)
		d.used[chain] = true
		if size := d.dispatch.FindStringSubmatch(chain); size != nil {
			n, _ := strconv.Atoi(size[1])
			d.sizes[drawing{key, strings.Contains(chain, "local-")}] = n
		}
		if owner, known := d.owners[chain]; d.affinity.MatchString(chain) && (!known || key < owner) {
			d.owners[chain] = key
		}
	}
}

// owned replaces the affinity id in the name of a chain by its owner.
func (d *dumper) owned(chain string) string {
	if owner, known := d.owners[chain]; known {
		return d.affinity.ReplaceAllString(chain, "${1}<"+owner+">${3}")
	}
	return chain
}

func (d *dumper) lines(title string, lines []string) {
	slices.Sort(lines)
	fmt.Fprintln(&d.text, title)
	for _, line := range lines {
		fmt.Fprintln(&d.text, "\t"+line)
	}
}

func (d *dumper) chain(chain *knftables.FakeChain) string {
	var text strings.Builder
	title := "chain " + d.owned(chain.Name)
	if chain.Type != nil {
		title += fmt.Sprintf(" { type %s hook %s priority %s }", *chain.Type, *chain.Hook, *chain.Priority)
	}
	fmt.Fprintln(&text, title)
	for _, rule := range chain.Rules {
		line := rule.Rule
		if _, known := d.owners[chain.Name]; known {
			line = d.constant.ReplaceAllString(line, "${1}ID")
		}
		fmt.Fprintln(&text, "\t"+line)
	}
	return text.String()
}

func (d *dumper) elementLines(elements []*knftables.Element) []string {
	var lines []string
	for _, e := range elements {
		line := strings.Join(e.Key, separator)
		if len(e.Value) > 0 {
			value := strings.Join(e.Value, separator)
			if verb, chain, ok := strings.Cut(value, " "); ok {
				value = verb + " " + d.owned(chain)
			}
			line += " : " + value
		}
		lines = append(lines, line)
	}
	return lines
}

// rows writes the rows of one map of VIPs, or of NodePorts. The protocol is empty
// where it is part of the key.
func (d *dumper) rows(ofVIPs bool, protocol string, elements []*knftables.Element) []string {
	var lines []string
	for _, e := range elements {
		last := len(e.Key) - 1
		vip := slices.Clone(e.Key[:last])
		if protocol != "" {
			at := 0
			if ofVIPs {
				at = 1
			}
			vip = slices.Insert(vip, at, protocol)
		}
		key := drawing{vip: strings.Join(vip, separator)}
		bucket, err := strconv.Atoi(e.Key[last])
		if bucket >= localBucket {
			key.local, bucket = true, bucket-localBucket
		}
		line := fmt.Sprintf("%s : %s", key.vip, strings.Join(e.Value, separator))
		if key.local {
			line += " (local)"
		}
		if err != nil || bucket >= d.sizes[key] {
			line += " (surplus, bucket " + e.Key[last] + ")"
		}
		lines = append(lines, line)
	}
	return lines
}

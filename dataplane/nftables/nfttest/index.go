// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

// verdict is how to go on after a statement, a rule or a chain.
type verdict uint8

const (
	// next goes on to the right, and at the end of a rule to the next rule.
	next verdict = iota
	// mismatch ends the rule.
	mismatch
	// leave ends the chain and returns to the one that jumped to it.
	leave
	// accepted ends the base chain.
	accepted
	rejected
	dropped
)

// index is a table made ready for lookups.
type index struct {
	ip     string
	chains map[string][]rule
	bases  []baseChain
	sets   map[string]*set
	// local are the node's addresses.
	local []netip.Addr
}

func (x *index) isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(x.local, addr)
}

type baseChain struct {
	name, hook string
	priority   int
	// nat chains see the first packet of a connection, and each of its two
	// translations once.
	nat bool
}

func newIndex(table *knftables.FakeTable, local []netip.Addr) (*index, error) {
	x := &index{chains: make(map[string][]rule), sets: make(map[string]*set), local: local}
	x.readSets(table)
	for name, chain := range table.Chains {
		x.chains[name] = nil
		if chain.Type == nil {
			continue
		}
		priority, err := strconv.Atoi(string(*chain.Priority))
		if err != nil {
			return nil, fmt.Errorf("chain %s: priority: %w", name, err)
		}
		x.bases = append(x.bases, baseChain{name, string(*chain.Hook), priority, *chain.Type == knftables.NATType})
	}
	slices.SortFunc(x.bases, func(a, b baseChain) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(a.name, b.name))
	})
	var err error
	if x.ip, err = familyOf(table); err != nil {
		return nil, err
	}
	for name, chain := range table.Chains {
		for _, r := range chain.Rules {
			parsed, err := parseRule(x, r.Rule)
			if err != nil {
				return nil, fmt.Errorf("chain %s: %w", name, err)
			}
			x.chains[name] = append(x.chains[name], parsed)
		}
	}
	return x, nil
}

func (x *index) readSets(table *knftables.FakeTable) {
	for name, s := range table.Sets {
		x.sets[name] = newSet(name, s.Size, s.Elements)
	}
	for name, m := range table.Maps {
		x.sets[name] = newSet(name, m.Size, m.Elements)
	}
}

// familyOf returns "ip" or "ip6".
func familyOf(table *knftables.FakeTable) (string, error) {
	if table.Family == knftables.IPv4Family || table.Family == knftables.IPv6Family {
		return string(table.Family), nil
	}
	return "", fmt.Errorf("family %q of the table is neither ip nor ip6", table.Family)
}

func (x *index) hasChain(name string) bool {
	_, ok := x.chains[name]
	return ok
}

// pass takes a packet through all hooks on its way.
func (x *index) pass(pkt *packet) (Outcome, error) {
	first := hookPrerouting
	if pkt.in == "" {
		first = hookOutput
	}
	v, err := x.hook(pkt, first)
	for _, hook := range x.way(pkt) {
		if err != nil || v != accepted {
			break
		}
		v, err = x.hook(pkt, hook)
	}
	if err != nil {
		return Outcome{}, err
	}
	outcome := Outcome{Verdict: "none", Masquerade: pkt.masquerade, Counted: pkt.counted}
	switch {
	case v == rejected:
		outcome.Verdict = "reject"
	case v == dropped:
		outcome.Verdict = "drop"
	case pkt.translated:
		outcome.Verdict, outcome.Endpoint = "dnat", netip.AddrPortFrom(pkt.dest, pkt.port)
	}
	return outcome, nil
}

const (
	hookPrerouting  = string(knftables.PreroutingHook)
	hookInput       = string(knftables.InputHook)
	hookForward     = string(knftables.ForwardHook)
	hookOutput      = string(knftables.OutputHook)
	hookPostrouting = string(knftables.PostroutingHook)
)

// way returns the hooks behind the first one, by where the packet goes now. What the
// node sends to itself leaves and comes in again.
func (x *index) way(pkt *packet) []string {
	here := x.isForNode(pkt)
	switch {
	case pkt.in == "" && here:
		return []string{hookPostrouting, hookPrerouting, hookInput}
	case pkt.in == "":
		return []string{hookPostrouting}
	case here:
		return []string{hookInput}
	default:
		return []string{hookForward, hookPostrouting}
	}
}

// isForNode says whether the packet goes to an address of the node as it is now.
func (x *index) isForNode(pkt *packet) bool {
	return pkt.toNode && !pkt.translated || x.isLocal(pkt.dest)
}

// hook runs the base chains of one hook.
func (x *index) hook(pkt *packet, hook string) (verdict, error) {
	// The node's packet to itself has both its translations when it comes in
	// again, by the loopback interface.
	again := pkt.out
	switch hook {
	case hookPostrouting:
		pkt.out = pkt.in == ""
	case hookPrerouting:
		if again {
			pkt.in = "lo"
		}
	}
	for _, base := range x.bases {
		if base.hook != hook || base.nat && again {
			continue
		}
		v, err := x.chain(pkt, base.name)
		if err != nil || v == rejected || v == dropped {
			return v, err
		}
	}
	return accepted, nil
}

// chain runs one chain. It returns leave at its end.
func (x *index) chain(pkt *packet, name string) (verdict, error) {
	const deepest = 16
	if pkt.depth++; pkt.depth > deepest {
		return dropped, fmt.Errorf("chain %s: more than %d chains deep", name, deepest)
	}
	defer func() { pkt.depth-- }()
	for _, r := range x.chains[name] {
		v := next
		for _, s := range r {
			var err error
			if v, err = s(pkt); err != nil {
				return dropped, fmt.Errorf("chain %s: %w", name, err)
			}
			if v != next {
				break
			}
		}
		if v != next && v != mismatch {
			return v, nil
		}
	}
	return leave, nil
}

// transfer runs another chain. After goto, its end is the end of this chain too.
func (x *index) transfer(pkt *packet, verb, chain string) (verdict, error) {
	v, err := x.chain(pkt, chain)
	if verb == "jump" && v == leave {
		v = next
	}
	return v, err
}

// verdictOf does what an element of a verdict map says.
func (x *index) verdictOf(pkt *packet, value string) (verdict, error) {
	switch value {
	case "drop":
		return dropped, nil
	case "accept":
		return accepted, nil
	case "return":
		return leave, nil
	}
	verb, chain, _ := strings.Cut(value, " ")
	if (verb != "goto" && verb != "jump") || !x.hasChain(chain) {
		return dropped, fmt.Errorf("unknown verdict %q", value)
	}
	return x.transfer(pkt, verb, chain)
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// rule is a rule as a list of what it does from left to right.
type rule []statement

// statement does its part and says how to go on.
type statement func(*packet) (verdict, error)

// field yields a part of a key as nft writes it in an element. It is not ok
// where the packet has no such part, which ends the rule.
type field func(*packet) (value string, ok bool)

// parser reads one rule of a table of one family.
type parser struct {
	// ip is "ip" or "ip6".
	ip    string
	table *index
	words []string
	pos   int
}

func parseRule(table *index, text string) (rule, error) {
	p := &parser{ip: table.ip, table: table, words: strings.Fields(text)}
	var r rule
	for !p.end() {
		s, err := p.statement()
		if err != nil {
			return nil, fmt.Errorf("rule %q: at word %d: %w", text, p.pos+1, err)
		}
		r = append(r, s)
	}
	if len(r) == 0 {
		return nil, fmt.Errorf("rule without words")
	}
	return r, nil
}

func (p *parser) end() bool { return p.pos >= len(p.words) }

// take reads the words if they are next.
func (p *parser) take(text string) bool {
	words := strings.Fields(text)
	if len(p.words)-p.pos < len(words) || !slices.Equal(p.words[p.pos:p.pos+len(words)], words) {
		return false
	}
	p.pos += len(words)
	return true
}

// word reads one word, whatever it is.
func (p *parser) word() (string, error) {
	if p.end() {
		return "", fmt.Errorf("the rule ends too early")
	}
	p.pos++
	return p.words[p.pos-1], nil
}

func (p *parser) statement() (statement, error) {
	switch {
	case p.take("counter"):
		return func(pkt *packet) (verdict, error) { pkt.counted = true; return next, nil }, nil
	case p.take("reject"):
		return final(rejected), nil
	case p.take("drop"):
		return final(dropped), nil
	case p.take("accept"):
		return final(accepted), nil
	case p.take("return"):
		return final(leave), nil
	case p.take("fib saddr type local"):
		return match(func(pkt *packet) bool { return p.table.isLocal(pkt.source) }), nil
	case p.take("fib daddr type local"):
		return match(p.table.isForNode), nil
	case p.take("update"):
		return p.update()
	case p.take("masquerade fully-random"):
		return func(pkt *packet) (verdict, error) { pkt.masquerade = true; return accepted, nil }, nil
	case p.take("jump"), p.take("goto"):
		return p.transfer(p.words[p.pos-1])
	case p.take("ct state new"):
		return match(func(*packet) bool { return true }), nil
	case p.take("ct status dnat"):
		return match(func(pkt *packet) bool { return pkt.translated }), nil
	case p.take("ct mark set"):
		return p.setMark()
	case p.take("dnat " + p.ip + " addr . port to"):
		return p.dnat()
	default:
		return p.lookup()
	}
}

func final(v verdict) statement { return func(*packet) (verdict, error) { return v, nil } }

func match(matches func(*packet) bool) statement {
	return func(pkt *packet) (verdict, error) {
		if matches(pkt) {
			return next, nil
		}
		return mismatch, nil
	}
}

func (p *parser) transfer(verb string) (statement, error) {
	chain, err := p.word()
	if err != nil {
		return nil, err
	}
	if !p.table.hasChain(chain) {
		return nil, fmt.Errorf("%s to the unknown chain %q", verb, chain)
	}
	return func(pkt *packet) (verdict, error) { return p.table.transfer(pkt, verb, chain) }, nil
}

func (p *parser) setMark() (statement, error) {
	value, err := p.field()
	if err != nil {
		return nil, err
	}
	return func(pkt *packet) (verdict, error) {
		pkt.mark, _ = value(pkt)
		return next, nil
	}, nil
}

func (p *parser) dnat() (statement, error) {
	key, err := p.key()
	if err != nil {
		return nil, err
	}
	if !p.take("map") {
		return nil, fmt.Errorf("a map should follow the key of dnat")
	}
	elements, err := p.set()
	if err != nil {
		return nil, err
	}
	return func(pkt *packet) (verdict, error) {
		k, ok := key(pkt)
		if !ok {
			return mismatch, nil
		}
		value, ok := elements.find(pkt, k)
		if !ok {
			return mismatch, nil
		}
		addr, port, _ := strings.Cut(value, separator)
		to, err := netip.ParseAddr(addr)
		number, err2 := strconv.ParseUint(port, 10, 16)
		if err != nil || err2 != nil {
			return mismatch, fmt.Errorf("dnat to %q, which is no address and port", value)
		}
		pkt.dest, pkt.port, pkt.translated = to, uint16(number), true
		return accepted, nil
	}, nil
}

// lookup reads a match or a verdict map: a key, and what it is looked for in.
func (p *parser) lookup() (statement, error) {
	start := p.pos
	key, err := p.key()
	if err != nil {
		return nil, err
	}
	if p.take("vmap") {
		elements, err := p.set()
		if err != nil {
			return nil, err
		}
		return func(pkt *packet) (verdict, error) {
			k, ok := key(pkt)
			value, found := elements.find(pkt, k)
			if !ok || !found {
				return mismatch, nil
			}
			return p.table.verdictOf(pkt, value)
		}, nil
	}
	negate := p.take("!=")
	if !p.end() && strings.HasPrefix(p.words[p.pos], "@") {
		elements, err := p.set()
		if err != nil {
			return nil, err
		}
		return match(func(pkt *packet) bool {
			k, ok := key(pkt)
			_, found := elements.find(pkt, k)
			return ok && found != negate
		}), nil
	}
	equal, err := p.literal(strings.Join(p.words[start:p.pos], " "))
	if err != nil {
		return nil, err
	}
	return match(func(pkt *packet) bool {
		k, ok := key(pkt)
		return ok && equal(k) != negate
	}), nil
}

// literal reads the value that a match compares its left side with.
func (p *parser) literal(left string) (func(string) bool, error) {
	value, err := p.word()
	if err != nil {
		return nil, err
	}
	switch left = strings.TrimSuffix(left, " !="); left {
	case "meta l4proto":
		if !slices.Contains(protocols(), value) {
			return nil, fmt.Errorf("unknown protocol %q", value)
		}
		return func(k string) bool { return k == value }, nil
	case p.ip + " saddr", p.ip + " daddr":
		prefix, err := parsePrefix(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", left, err)
		}
		if prefix.Addr().Is4() != (p.ip == "ip") {
			return nil, fmt.Errorf("%s of the other family: %s", left, value)
		}
		return func(k string) bool { return prefix.Contains(netip.MustParseAddr(k)) }, nil
	case "iifname":
		name, err := strconv.Unquote(value)
		if err != nil || name == "" {
			return nil, fmt.Errorf("%q is no interface name", value)
		}
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			return func(k string) bool { return strings.HasPrefix(k, prefix) }, nil
		}
		return func(k string) bool { return k == name }, nil
	default:
		return nil, fmt.Errorf("%q cannot be compared with %q", left, value)
	}
}

// parsePrefix reads a prefix or a single address.
func parsePrefix(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return addr.Prefix(addr.BitLen())
}

// set reads the name of a set or map and returns its elements.
func (p *parser) set() (*set, error) {
	word, err := p.word()
	if err != nil {
		return nil, err
	}
	name, ok := strings.CutPrefix(word, "@")
	elements, known := p.table.sets[name]
	if !ok || !known {
		return nil, fmt.Errorf("unknown set %q", word)
	}
	return elements, nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/veridict/veridict/dataplane"
)

// separator stands between the fields of a key.
const separator = " . "

func protocols() []string {
	var names []string
	for _, p := range dataplane.Protocols() {
		names = append(names, p.String())
	}
	return names
}

// key reads fields with dots between them.
func (p *parser) key() (field, error) {
	var fields []field
	for {
		f, err := p.field()
		if err != nil {
			return nil, err
		}
		fields = append(fields, f)
		if !p.take(".") {
			break
		}
	}
	return func(pkt *packet) (string, bool) {
		values := make([]string, len(fields))
		for i, f := range fields {
			value, ok := f(pkt)
			if !ok {
				return "", false
			}
			values[i] = value
		}
		return strings.Join(values, separator), true
	}, nil
}

func (p *parser) field() (field, error) {
	addr := func(get func(*packet) netip.Addr) (field, error) {
		return func(pkt *packet) (string, bool) { return get(pkt).String(), true }, nil
	}
	port := func(get func(*packet) uint16) (field, error) {
		return func(pkt *packet) (string, bool) { return strconv.Itoa(int(get(pkt))), true }, nil
	}
	dest := func(pkt *packet) uint16 { return pkt.port }
	switch {
	case p.take(p.ip + " saddr"), p.take("ct original " + p.ip + " saddr"):
		return addr(func(pkt *packet) netip.Addr { return pkt.source })
	case p.take(p.ip + " daddr"), p.take("ct reply " + p.ip + " saddr"):
		return addr(func(pkt *packet) netip.Addr { return pkt.dest })
	case p.take("ct original " + p.ip + " daddr"):
		return addr(func(pkt *packet) netip.Addr { return pkt.original.Addr() })
	case p.take("th dport"), p.take("ct reply proto-src"):
		return port(dest)
	case p.take("ct original proto-dst"):
		return port(func(pkt *packet) uint16 { return pkt.original.Port() })
	case p.take("meta l4proto"):
		return func(pkt *packet) (string, bool) { return pkt.protocol, true }, nil
	case p.take("ct mark"):
		return func(pkt *packet) (string, bool) { return pkt.mark, true }, nil
	case p.take("iifname"):
		return func(pkt *packet) (string, bool) { return pkt.in, true }, nil
	case p.take("numgen random"):
		return p.number(false)
	case p.take("jhash " + p.ip + " saddr"):
		return p.number(true)
	case p.take("numgen inc mod 1"):
		// The one way to write a constant into a key.
		offset, err := p.option("offset")
		return func(*packet) (string, bool) { return strconv.Itoa(offset), true }, err
	}
	for _, protocol := range protocols() {
		if p.take(protocol + " dport") {
			return func(pkt *packet) (string, bool) { return strconv.Itoa(int(pkt.port)), pkt.protocol == protocol }, nil
		}
	}
	if p.end() {
		return nil, fmt.Errorf("the rule ends too early")
	}
	return nil, fmt.Errorf("unknown words %q", strings.Join(p.words[p.pos:], " "))
}

// number reads "mod N", the seed of a hash and an offset, and draws a number with
// those. A hash is a draw as well: which, is nothing to rely on.
func (p *parser) number(hash bool) (field, error) {
	n, err := p.option("mod")
	if err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("a number modulo %d", n)
	}
	if hash {
		if _, err := p.option("seed"); err != nil {
			return nil, err
		}
	}
	offset, err := p.option("offset")
	if err != nil {
		return nil, err
	}
	return func(pkt *packet) (string, bool) {
		draw := pkt.draw
		if hash {
			draw = pkt.hash
		}
		return strconv.Itoa(offset + draw(n)), true
	}, nil
}

// option reads a word and the number behind it, if they are next; else it returns 0.
func (p *parser) option(name string) (int, error) {
	if !p.take(name) {
		return 0, nil
	}
	word, err := p.word()
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseInt(word, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return int(number), nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"fmt"
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
	switch {
	case p.take(p.ip + " saddr"):
		return func(pkt *packet) (string, bool) { return pkt.source.String(), true }, nil
	case p.take(p.ip + " daddr"):
		return func(pkt *packet) (string, bool) { return pkt.dest.String(), true }, nil
	case p.take("ct original " + p.ip + " daddr"):
		return func(pkt *packet) (string, bool) { return pkt.original.String(), true }, nil
	case p.take("meta l4proto"):
		return func(pkt *packet) (string, bool) { return pkt.protocol, true }, nil
	case p.take("th dport"):
		return destPort, nil
	case p.take("ct mark"):
		return func(pkt *packet) (string, bool) { return pkt.mark, true }, nil
	case p.take("iifname"):
		return func(pkt *packet) (string, bool) { return pkt.in, true }, nil
	case p.take("numgen random mod"):
		return p.numgen()
	}
	for _, protocol := range protocols() {
		if p.take(protocol + " dport") {
			return func(pkt *packet) (string, bool) {
				port, _ := destPort(pkt)
				return port, pkt.protocol == protocol
			}, nil
		}
	}
	if p.end() {
		return nil, fmt.Errorf("the rule ends too early")
	}
	return nil, fmt.Errorf("unknown words %q", strings.Join(p.words[p.pos:], " "))
}

func destPort(pkt *packet) (string, bool) { return strconv.Itoa(int(pkt.port)), true }

func (p *parser) numgen() (field, error) {
	word, err := p.word()
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(word)
	if err != nil || n < 1 {
		return nil, fmt.Errorf("numgen modulo %q", word)
	}
	return func(pkt *packet) (string, bool) { return strconv.Itoa(pkt.draw(n)), true }, nil
}

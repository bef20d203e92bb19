// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Learn writes an element as a packet does: key and value are in nft's words. An
// element that is there keeps its value.
func (k *Fake) Learn(id dataplane.Family, set, key, value string, timeout time.Duration) error {
	t := k.tables[id]
	if t.sets[set] == nil {
		return fmt.Errorf("learn into %s: there is no such set", set)
	}
	e := element{set: set, timeout: timeout}
	var err error
	if e.key, err = encodeFields(keyFields(set), key); err != nil {
		return fmt.Errorf("learn into %s: %w", set, err)
	}
	if value != "" {
		if e.data, err = encodeFields(endpointFields(), value); err != nil {
			return fmt.Errorf("learn into %s: %w", set, err)
		}
	}
	if old, ok := t.sets[set].elements[e.key]; ok {
		e.data = old.data
	}
	t.put(op{element: e})
	return nil
}

// Pass lets time pass for the elements that packets have written.
func (k *Fake) Pass(d time.Duration) {
	for _, t := range k.tables {
		for _, set := range t.sets {
			for key, e := range set.elements {
				if e.timeout == 0 {
					continue
				}
				if e.timeout -= d; e.timeout <= 0 {
					delete(set.elements, key)
				} else {
					set.elements[key] = e
				}
			}
		}
	}
}

// encodeFields is the reverse of fieldsText.
func encodeFields(fields []field, text string) (string, error) {
	words := strings.Split(text, " . ")
	if len(words) != len(fields) {
		return "", fmt.Errorf("%q has %d fields, want %d", text, len(words), len(fields))
	}
	var data []byte
	for i, part := range fields {
		switch part {
		case addrField:
			addr, err := netip.ParseAddr(words[i])
			if err != nil {
				return "", err
			}
			data = appendAddr(data, addr)
		case protocolField:
			for _, p := range dataplane.Protocols() {
				if p.String() == words[i] {
					data = appendProtocol(data, p)
				}
			}
		case portField, wordField:
			n, err := strconv.ParseUint(words[i], 10, 32)
			if err != nil {
				return "", err
			}
			if part == portField {
				data = appendPort(data, uint16(n))
			} else {
				data = appendWord(data, uint32(n))
			}
		}
	}
	return string(data), nil
}

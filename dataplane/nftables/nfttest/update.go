// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"fmt"
	"time"
)

// Learned is an element that a packet has written, in nft's words.
type Learned struct {
	// Value is empty in a set.
	Set, Key, Value string
	// Timeout is how long the element stays, 0 for ever.
	Timeout time.Duration
}

// update reads the rest of a statement that writes an element.
func (p *parser) update() (statement, error) {
	into, err := p.set()
	if err != nil {
		return nil, err
	}
	if !p.take("{") {
		return nil, fmt.Errorf("an element should follow update")
	}
	key, err := p.key()
	if err != nil {
		return nil, err
	}
	timeout, err := p.timeout()
	if err != nil {
		return nil, err
	}
	var value field
	if p.take(":") {
		if value, err = p.key(); err != nil {
			return nil, err
		}
	}
	if !p.take("}") {
		return nil, fmt.Errorf("the element does not end")
	}
	return func(pkt *packet) (verdict, error) {
		learned := Learned{Set: into.name, Timeout: timeout}
		var ok bool
		if learned.Key, ok = key(pkt); !ok {
			return mismatch, nil
		}
		if value != nil {
			if learned.Value, ok = value(pkt); !ok {
				return mismatch, nil
			}
		}
		// A value that is there stays. What does not fit ends the rule.
		old, known := into.find(pkt, learned.Key)
		switch {
		case known:
			learned.Value = old
		case into.full():
			return mismatch, nil
		}
		pkt.learned = append(pkt.learned, learned)
		return next, nil
	}, nil
}

func (p *parser) timeout() (time.Duration, error) {
	if !p.take("timeout") {
		return 0, nil
	}
	word, err := p.word()
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(word)
}

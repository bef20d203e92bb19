// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// topKey is a character, or one of the keys below.
type topKey rune

const (
	keyUp topKey = -1 - iota
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
	keyEscape
	keyEnter
	keyErase
	keyEraseAll
	keyInterrupt
)

const escapeByte = '\x1b'

// decodeKeys returns the keys that a terminal has sent, and bytes at the end that
// begin another. If complete, nothing follows these: an escape is then the key.
// Keys that mean nothing here are left out.
func decodeKeys(input []byte, complete bool) (keys []topKey, rest []byte) {
	for len(input) > 0 {
		if input[0] == escapeByte {
			key, size := decodeEscape(input)
			if size == 0 && !complete {
				return keys, input
			}
			if size == 0 {
				key, size = keyEscape, len(input)
			}
			if key != 0 {
				keys = append(keys, key)
			}
			input = input[size:]
			continue
		}
		if !complete && !utf8.FullRune(input) {
			return keys, input
		}
		r, size := utf8.DecodeRune(input)
		if key := plainKey(r); key != 0 {
			keys = append(keys, key)
		}
		input = input[size:]
	}
	return keys, nil
}

func plainKey(r rune) topKey {
	switch r {
	case '\x03':
		return keyInterrupt
	case '\r', '\n':
		return keyEnter
	case '\x7f', '\b':
		return keyErase
	case '\x15':
		return keyEraseAll
	case utf8.RuneError:
		return 0
	}
	if !unicode.IsPrint(r) {
		return 0
	}
	return topKey(r)
}

// decodeEscape returns the key that an escape begins, 0 for one without a use, and how
// many bytes it has, 0 if some are missing.
func decodeEscape(input []byte) (key topKey, size int) {
	if len(input) == 1 {
		return 0, 0
	}
	if input[1] != '[' && input[1] != 'O' {
		return keyEscape, 1
	}
	end := bytes.IndexFunc(input[2:], func(r rune) bool { return r < ' ' || r > '?' })
	if end < 0 {
		return 0, 0
	}
	size = 2 + end + 1
	switch string(input[2:size]) {
	case "A":
		return keyUp, size
	case "B":
		return keyDown, size
	case "5~":
		return keyPageUp, size
	case "6~":
		return keyPageDown, size
	case "H", "1~", "7~":
		return keyHome, size
	case "F", "4~", "8~":
		return keyEnd, size
	}
	return 0, size
}

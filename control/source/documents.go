// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// documents splits a stream at the lines that begin with "---". It is an
// io.Reader for the bytes of the current document, so that a document of any
// size can be decoded while it is read.
type documents struct {
	in *bufio.Reader
	// rest is what was read of the current document and not handed out.
	rest []byte
	// carry is what stood on the line of the separator.
	carry []byte
	// atLineStart says that the next byte from in begins a line.
	atLineStart bool
	line        int
	// ended says that the current document is at its end, done that the
	// stream is.
	ended, done bool
}

func newDocuments(r io.Reader) *documents {
	return &documents{in: bufio.NewReaderSize(r, 64<<10), atLineStart: true, line: 1, ended: true}
}

// next goes to the next document, past what was not read of the current one,
// and says whether there is one.
func (d *documents) next() (bool, error) {
	for !d.ended {
		if err := d.fill(); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
	}
	if d.done {
		return false, nil
	}
	d.rest, d.carry = d.carry, nil
	d.ended = false
	return true, nil
}

// Read is part of io.Reader.
func (d *documents) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if err := d.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// fill reads a piece of the current document into rest: a line, or a part of a
// long one. At the end of the document it returns io.EOF.
func (d *documents) fill() error {
	if d.ended {
		return io.EOF
	}
	piece, err := d.in.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
		return err
	}
	if len(piece) == 0 {
		d.ended, d.done = true, true
		return io.EOF
	}
	starts := d.atLineStart
	d.atLineStart = piece[len(piece)-1] == '\n'
	if d.atLineStart {
		d.line++
	}
	d.rest = piece
	if starts && isSeparator(piece) {
		// What follows on the line of the separator belongs to the next
		// document.
		d.rest, d.carry = nil, afterSeparator(piece)
		d.ended = true
		return io.EOF
	}
	return nil
}

func isSeparator(line []byte) bool {
	rest, found := bytes.CutPrefix(line, []byte("---"))
	return found && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0])))
}

// afterSeparator returns a copy of what is on the line besides "---", nil if
// that is nothing but space or a comment.
func afterSeparator(line []byte) []byte {
	rest := bytes.TrimSpace(line[len("---"):])
	if len(rest) == 0 || rest[0] == '#' {
		return nil
	}
	return append(bytes.Clone(rest), '\n')
}

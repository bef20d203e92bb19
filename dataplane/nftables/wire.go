// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// elementsPerMessage keeps the attribute that holds a message's elements below
// 64 KiB, since its length has 16 bits: elements of the longest kind, a range of IPv6
// clients or an IPv6 pin with its timeout, take some 110 bytes.
const elementsPerMessage = 400

// encoder writes the netlink messages of a transaction of elements. It is used
// again for the next one: programming a cluster would otherwise leave several
// times its size in garbage, as google/nftables v0.3.0 does.
type encoder struct {
	buf []byte
}

// transaction returns the messages of ops, one behind the other, and the number
// of messages. They are numbered from first. Deletions go first, so that a value
// is replaced by deleting and adding its element. The bytes are valid until the
// next call.
//
// The kernel answers only to the last message of elements, the one before the end
// of the batch, and to those at fault.
func (e *encoder) transaction(f family, ops []op, first uint32) (data []byte, n uint32) {
	e.buf = e.buf[:0]
	sets := setsOf(ops)
	sequence := first
	e.frame(unix.NFNL_MSG_BATCH_BEGIN, sequence)
	last := 0
	for _, del := range []bool{true, false} {
		for _, set := range sets {
			for rest := ops; len(rest) > 0; {
				start := len(e.buf)
				rest = e.message(f, set, del, rest, sequence+1)
				if len(e.buf) > start {
					sequence, last = sequence+1, start
				}
			}
		}
	}
	flags := e.buf[last+flagsOffset:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	sequence++
	e.frame(unix.NFNL_MSG_BATCH_END, sequence)
	return e.buf, sequence - first + 1
}

// flagsOffset is where the flags stand in a message.
const flagsOffset = 6

// header begins a message with the headers of netlink and of nfnetlink. The
// length and the sender are filled in by finish and the kernel.
func (e *encoder) header(kind, flags uint16, sequence uint32, family byte, resource uint16) (at int) {
	at = len(e.buf)
	e.buf = append(e.buf, 0, 0, 0, 0)
	e.buf = binary.NativeEndian.AppendUint16(e.buf, kind)
	e.buf = binary.NativeEndian.AppendUint16(e.buf, flags)
	e.buf = binary.NativeEndian.AppendUint32(e.buf, sequence)
	e.buf = append(e.buf, 0, 0, 0, 0)
	e.buf = append(e.buf, family, unix.NFNETLINK_V0)
	e.buf = binary.BigEndian.AppendUint16(e.buf, resource)
	return at
}

// finish ends the message that begins at at.
func (e *encoder) finish(at int) {
	binary.NativeEndian.PutUint32(e.buf[at:], uint32(len(e.buf)-at))
}

// frame writes the message before or behind those of a transaction.
func (e *encoder) frame(kind uint16, sequence uint32) {
	e.finish(e.header(kind, unix.NLM_F_REQUEST, sequence, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES))
}

// setsOf returns the sets of the operations in the order of their first.
func setsOf(ops []op) []string {
	var sets []string
	for _, o := range ops {
		known := false
		for _, set := range sets {
			known = known || set == o.set
		}
		if !known {
			sets = append(sets, o.set)
		}
	}
	return sets
}

// message writes the first operations on one set as a message, or nothing if
// there are none. It returns the operations behind them.
func (e *encoder) message(f family, set string, del bool, ops []op, sequence uint32) (rest []op) {
	kind := uint16(unix.NFT_MSG_NEWSETELEM)
	if del {
		kind = unix.NFT_MSG_DELSETELEM
	}
	start := e.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, sequence, byte(tableFamily(f)), 0)
	e.text(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	e.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	list := e.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	n := 0
	for i := range ops {
		if n == elementsPerMessage {
			rest = ops[i:]
			break
		}
		if o := &ops[i]; o.delete == del && o.set == set {
			e.element(o)
			n++
		}
	}
	if n == 0 {
		e.buf = e.buf[:start]
		return rest
	}
	e.close(list)
	e.finish(start)
	return rest
}

func (e *encoder) element(o *op) {
	item := e.open(unix.NFTA_LIST_ELEM)
	e.value(unix.NFTA_SET_ELEM_KEY, o.key)
	if o.end != "" {
		e.value(setElemKeyEnd, o.end)
	}
	switch {
	case o.delete:
	case o.data != "":
		e.value(unix.NFTA_SET_ELEM_DATA, o.data)
	case o.verdict != "":
		e.verdict(o.verdict)
	}
	if o.timeout > 0 && !o.delete {
		at := e.open(unix.NFTA_SET_ELEM_TIMEOUT)
		e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(o.timeout.Milliseconds()))
		e.closePlain(at, unix.NFTA_SET_ELEM_TIMEOUT)
	}
	e.close(item)
}

// value writes a key or a value.
func (e *encoder) value(kind uint16, data string) {
	outer := e.open(kind)
	inner := e.open(unix.NFTA_DATA_VALUE)
	e.buf = append(e.buf, data...)
	e.closePlain(inner, unix.NFTA_DATA_VALUE)
	e.close(outer)
}

func (e *encoder) verdict(verdict string) {
	code, chain := parseVerdict(verdict)
	e.verdictData(unix.NFTA_SET_ELEM_DATA, code, chain)
}

// verdictData writes a verdict as an attribute of kind.
func (e *encoder) verdictData(kind uint16, code int32, chain string) {
	data := e.open(kind)
	inner := e.open(unix.NFTA_DATA_VERDICT)
	e.word(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		e.text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	e.close(inner)
	e.close(data)
}

// parseVerdict returns the kernel's code of a verdict, and the chain that it goes
// to.
func parseVerdict(verdict string) (code int32, chain string) {
	chain = chainOf(verdict)
	switch {
	case chain == "":
		return nfDrop, ""
	case verdict == jumpVerdict(chain):
		return unix.NFT_JUMP, chain
	default:
		return unix.NFT_GOTO, chain
	}
}

// text writes a string with its final zero.
func (e *encoder) text(kind uint16, s string) {
	at := e.open(kind)
	e.buf = append(append(e.buf, s...), 0)
	e.closePlain(at, kind)
}

// open begins an attribute that holds others, and returns where.
func (e *encoder) open(kind uint16) int {
	at := len(e.buf)
	e.buf = append(e.buf, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(e.buf[at+2:], kind|unix.NLA_F_NESTED)
	return at
}

// close ends an attribute that open has begun.
func (e *encoder) close(at int) {
	binary.NativeEndian.PutUint16(e.buf[at:], uint16(len(e.buf)-at))
	for len(e.buf)%unix.NLA_ALIGNTO != 0 {
		e.buf = append(e.buf, 0)
	}
}

// closePlain ends an attribute that holds data.
func (e *encoder) closePlain(at int, kind uint16) {
	binary.NativeEndian.PutUint16(e.buf[at+2:], kind)
	e.close(at)
}

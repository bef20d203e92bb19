// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// elementsPerMessage keeps the attribute that holds a message's elements below
// 64 KiB, since its length has 16 bits: 400 elements of the longest kind take
// 50 KiB.
const elementsPerMessage = 400

// encoder writes the netlink messages of a transaction of elements. It is used
// again for the next one: programming a cluster would otherwise leave several
// times its size in garbage, as google/nftables v0.3.0 does.
type encoder struct {
	buf []byte
	// bounds are where each message's data ends in buf.
	bounds []int
}

// transaction returns the messages of ops. Deletions go first, so that a value is
// replaced by deleting and adding its element. The messages are valid until the
// next call.
//
// The kernel answers only to the last message of elements, and to those at fault.
func (e *encoder) transaction(f family, ops []op) []netlink.Message {
	e.buf, e.bounds = e.buf[:0], e.bounds[:0]
	list := []netlink.Message{frame(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, del := range []bool{true, false} {
		for _, set := range setsOf(ops) {
			for rest := ops; len(rest) > 0; {
				var n int
				if n, rest = e.message(f, set, del, rest); n > 0 {
					list = append(list, netlink.Message{Header: elementHeader(del)})
				}
			}
		}
	}
	start := 0
	for i, end := range e.bounds {
		list[i+1].Data = e.buf[start:end]
		start = end
	}
	list[len(list)-1].Header.Flags |= netlink.Acknowledge
	return append(list, frame(unix.NFNL_MSG_BATCH_END))
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

// frame is the message before and behind those of a transaction.
func frame(kind uint16) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

func elementHeader(del bool) netlink.Header {
	kind := uint16(unix.NFT_MSG_NEWSETELEM)
	if del {
		kind = unix.NFT_MSG_DELSETELEM
	}
	return netlink.Header{
		Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
		Flags: netlink.Request | netlink.Create,
	}
}

// message writes the first operations on one set as a message. It returns how
// many it wrote, which can be 0, and the operations behind them.
func (e *encoder) message(f family, set string, del bool, ops []op) (n int, rest []op) {
	start := len(e.buf)
	e.buf = append(e.buf, byte(tableFamily(f)), unix.NFNETLINK_V0, 0, 0)
	e.text(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	e.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	list := e.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
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
		return 0, rest
	}
	e.close(list)
	e.bounds = append(e.bounds, len(e.buf))
	return n, rest
}

func (e *encoder) element(o *op) {
	item := e.open(unix.NFTA_LIST_ELEM)
	e.value(unix.NFTA_SET_ELEM_KEY, o.key)
	switch {
	case o.delete:
	case o.data != "":
		e.value(unix.NFTA_SET_ELEM_DATA, o.data)
	case o.verdict != "":
		e.verdict(o.verdict)
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
	data := e.open(unix.NFTA_SET_ELEM_DATA)
	inner := e.open(unix.NFTA_DATA_VERDICT)
	code, chain := parseVerdict(verdict)
	at := e.open(unix.NFTA_VERDICT_CODE)
	e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(code))
	e.closePlain(at, unix.NFTA_VERDICT_CODE)
	if chain != "" {
		e.text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	e.close(inner)
	e.close(data)
}

// parseVerdict returns the kernel's code of a verdict, and the chain that it goes
// to.
func parseVerdict(verdict string) (code int32, chain string) {
	if verdict == dropVerdict {
		return nfDrop, ""
	}
	return unix.NFT_GOTO, verdict[len(gotoVerdict("")):]
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

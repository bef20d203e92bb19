// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// The nft program 1.0.6 ends with an assertion when it reads a map statement whose
// key and value do not fit into one of the kernel's four large registers each, as
// those of IPv6 pins never do. It lists such rules all the same, so that they are
// written over netlink whatever the installed program can do. google/nftables v0.3.0
// has no direction for the conntrack keys that nft uses.

// firstRegister is the first of sixteen registers of four bytes.
const firstRegister = unix.NFT_REG32_00

// Directions of connection tracking, enum ip_conntrack_dir.
const (
	original = 0
	reply    = 1
)

// pinRules is part of kernel.
func (k *netlinkKernel) pinRules(ctx context.Context, f family, chains []chainDecl) error {
	if len(chains) == 0 {
		return nil
	}
	if err := k.open(ctx); err != nil {
		return err
	}
	data, n := k.encoder.pinRules(f, chains, k.sequence)
	if err := k.send(data, n); err != nil {
		return errors.Join(fmt.Errorf("write the rules of %d chains that write pins: %w", len(chains), err), k.close())
	}
	return nil
}

// pinRules returns the messages that give the chains their rules.
func (e *encoder) pinRules(f family, chains []chainDecl, first uint32) (data []byte, n uint32) {
	e.buf = e.buf[:0]
	sequence := first
	e.frame(unix.NFNL_MSG_BATCH_BEGIN, sequence)
	last := 0
	message := func(kind uint16, chain string, flags uint16, rule func()) {
		last = len(e.buf)
		sequence++
		at := e.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_REQUEST|flags, sequence, byte(tableFamily(f)), 0)
		e.text(unix.NFTA_RULE_TABLE, tableName)
		e.text(unix.NFTA_RULE_CHAIN, chain)
		if rule != nil {
			list := e.open(unix.NFTA_RULE_EXPRESSIONS)
			rule()
			e.close(list)
		}
		e.finish(at)
	}
	for _, chain := range chains {
		message(unix.NFT_MSG_DELRULE, chain.name, 0, nil)
		const add = unix.NLM_F_CREATE | unix.NLM_F_APPEND
		for _, pin := range chain.pins {
			message(unix.NFT_MSG_NEWRULE, chain.name, add, func() { e.pinRule(f, pin) })
		}
		message(unix.NFT_MSG_NEWRULE, chain.name, add, func() { e.immediate(unix.NFT_GOTO, unpinnedChain) })
	}
	flags := e.buf[last+flagsOffset:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	sequence++
	e.frame(unix.NFNL_MSG_BATCH_END, sequence)
	return e.buf, sequence - first + 1
}

// pinRule writes what nft makes of [pinRule.text].
func (e *encoder) pinRule(f family, r pinRule) {
	addrRegisters := uint32(f.addrLen / 4)
	source, dest := uint32(unix.NFT_CT_SRC_IP), uint32(unix.NFT_CT_DST_IP)
	if f.addrLen == 16 {
		source, dest = unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6
	}
	e.expression("meta", func() {
		e.word(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
		e.word(unix.NFTA_META_DREG, firstRegister)
	})
	e.expression("cmp", func() {
		e.word(unix.NFTA_CMP_SREG, firstRegister)
		e.word(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		e.value(unix.NFTA_CMP_DATA, string([]byte{byte(r.protocol)}))
	})
	next := uint32(firstRegister)
	load := func(key uint32, direction byte, registers uint32) {
		e.expression("ct", func() {
			e.word(unix.NFTA_CT_DREG, next)
			e.word(unix.NFTA_CT_KEY, key)
			at := e.open(unix.NFTA_CT_DIRECTION)
			e.buf = append(e.buf, direction)
			e.closePlain(at, unix.NFTA_CT_DIRECTION)
		})
		next += registers
	}
	load(source, original, addrRegisters)
	if r.id > 0 {
		e.expression("numgen", func() {
			e.word(unix.NFTA_NG_DREG, next)
			e.word(unix.NFTA_NG_MODULUS, 1)
			e.word(unix.NFTA_NG_TYPE, unix.NFT_NG_INCREMENTAL)
			e.word(unix.NFTA_NG_OFFSET, r.id)
		})
		next++
	} else {
		load(dest, original, addrRegisters)
		load(unix.NFT_CT_PROTO_DST, original, 1)
	}
	value := next
	load(source, reply, addrRegisters)
	load(unix.NFT_CT_PROTO_SRC, reply, 1)
	e.expression("dynset", func() {
		e.text(unix.NFTA_DYNSET_SET_NAME, r.mapName())
		e.word(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
		e.word(unix.NFTA_DYNSET_SREG_KEY, firstRegister)
		e.word(unix.NFTA_DYNSET_SREG_DATA, value)
		at := e.open(unix.NFTA_DYNSET_TIMEOUT)
		milliseconds := (time.Duration(r.seconds) * time.Second).Milliseconds()
		e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(milliseconds))
		e.closePlain(at, unix.NFTA_DYNSET_TIMEOUT)
	})
	e.immediate(nfAccept, "")
}

// expression writes one expression of a rule.
func (e *encoder) expression(name string, data func()) {
	item := e.open(unix.NFTA_LIST_ELEM)
	e.text(unix.NFTA_EXPR_NAME, name)
	at := e.open(unix.NFTA_EXPR_DATA)
	data()
	e.close(at)
	e.close(item)
}

// immediate writes a verdict.
func (e *encoder) immediate(code int32, chain string) {
	e.expression("immediate", func() {
		e.word(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.verdictData(unix.NFTA_IMMEDIATE_DATA, code, chain)
	})
}

// word writes a number.
func (e *encoder) word(kind uint16, n uint32) {
	at := e.open(kind)
	e.buf = binary.BigEndian.AppendUint32(e.buf, n)
	e.closePlain(at, kind)
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The nft program 1.0.6 ends with an assertion when it reads a map statement whose
// key and value do not fit into one of the kernel's four large registers each, as
// those of IPv6 pins never do. It lists such rules all the same, so that they are
// written over netlink whatever the installed program can do.

// firstRegister is the first of sixteen registers of four bytes.
const firstRegister = unix.NFT_REG32_00

// Directions of connection tracking, enum ip_conntrack_dir.
const (
	original = 0
	reply    = 1
)

// pinRules is part of kernel.
func (k *netlinkKernel) pinRules(ctx context.Context, f family, chains []chainDecl) error {
	conn, err := k.connection(ctx)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: tableName, Family: tableFamily(f)}
	for _, decl := range chains {
		chain := &nftables.Chain{Name: decl.name, Table: table}
		conn.FlushChain(chain)
		for _, pin := range decl.pins {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: pin.expressions(f)})
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Verdict{Kind: expr.VerdictGoto, Chain: unpinnedChain},
		}})
	}
	if err := conn.Flush(); err != nil {
		return errors.Join(fmt.Errorf("write the rules of %d chains that write pins: %w", len(chains), err), k.close())
	}
	return nil
}

// expressions returns what nft makes of text.
func (r pinRule) expressions(f family) []expr.Any {
	addrRegisters := uint32(f.addrLen / 4)
	next := uint32(firstRegister)
	load := func(key expr.CtKey, direction, registers uint32) expr.Any {
		e := &expr.Ct{Register: next, Key: key, Direction: direction}
		next += registers
		return e
	}
	source, dest := expr.CtKey(unix.NFT_CT_SRC_IP), expr.CtKey(unix.NFT_CT_DST_IP)
	if f.addrLen == 16 {
		source, dest = expr.CtKey(unix.NFT_CT_SRC_IP6), expr.CtKey(unix.NFT_CT_DST_IP6)
	}
	list := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{byte(r.protocol)}},
		load(source, original, addrRegisters),
	}
	if r.id > 0 {
		list = append(list, &expr.Numgen{Register: next, Modulus: 1, Type: unix.NFT_NG_INCREMENTAL, Offset: r.id})
		next++
	} else {
		list = append(list, load(dest, original, addrRegisters), load(expr.CtKeyPROTODST, original, 1))
	}
	value := next
	return append(
		list,
		load(source, reply, addrRegisters),
		load(expr.CtKeyPROTOSRC, reply, 1),
		&expr.Dynset{
			SrcRegKey: firstRegister, SrcRegData: value, SetName: r.mapName(),
			Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: time.Duration(r.seconds) * time.Second,
		},
		&expr.Verdict{Kind: expr.VerdictReturn},
	)
}

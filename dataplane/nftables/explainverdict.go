// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// lookupInvert is NFT_LOOKUP_F_INV.
const lookupInvert = 1

func (w *walk) lookup(e expression) (ruleVerdict, error) {
	set := e.text(unix.NFTA_LOOKUP_SET)
	register, err := w.registers.at(e.number(unix.NFTA_LOOKUP_SREG))
	if err != nil {
		return verdictDrop, err
	}
	if strings.HasPrefix(set, "__") {
		return verdictDrop, fmt.Errorf("a set without a name")
	}
	length := lengthOf(keyFields(set), w.family)
	found, err := w.elements.find(w.ctx, set, string(register[:length]))
	if err != nil {
		return verdictDrop, err
	}
	inverted := e.number(unix.NFTA_LOOKUP_FLAGS)&lookupInvert != 0
	if found != nil {
		w.step("lookup", Step{Set: set, Element: found.text(w.family), Detail: w.describe(set, found)})
	}
	if (found != nil) == inverted {
		return verdictBreak, nil
	}
	target, stores := e.attrs[unix.NFTA_LOOKUP_DREG]
	switch {
	case !stores:
		return verdictNext, nil
	case binary.BigEndian.Uint32(target) == unix.NFT_REG_VERDICT:
		return w.follow(found.verdict)
	default:
		return w.load(e, unix.NFTA_LOOKUP_DREG, []byte(found.data))
	}
}

// describe says what cannot be seen from an element.
func (w *walk) describe(set string, e *element) string {
	if holdsPins(set) {
		return fmt.Sprintf("the client is pinned for another %s", e.timeout)
	}
	return ""
}

// follow does what a verdict says.
func (w *walk) follow(verdict string) (ruleVerdict, error) {
	chain := chainOf(verdict)
	if chain == "" {
		w.verdict = verdictDrop
		w.refuse()
		w.step("drop", Step{})
		return verdictDrop, nil
	}
	result, err := w.runChain(chain)
	if verdict == jumpVerdict(chain) && result == verdictReturn {
		result = verdictNext
	}
	return result, err
}

func (w *walk) immediate(e expression) (ruleVerdict, error) {
	if e.number(unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT {
		return w.load(e, unix.NFTA_IMMEDIATE_DREG, e.data(unix.NFTA_IMMEDIATE_DATA))
	}
	ad, err := netlink.NewAttributeDecoder(e.attrs[unix.NFTA_IMMEDIATE_DATA])
	if err != nil {
		return verdictDrop, err
	}
	code, chain := verdictOf(ad)
	switch code {
	case unix.NFT_GOTO:
		w.step("goto", Step{Detail: chain})
		return w.follow(gotoVerdict(chain))
	case unix.NFT_JUMP:
		return w.follow(jumpVerdict(chain))
	case unix.NFT_RETURN:
		return verdictReturn, nil
	case nfDrop:
		return w.follow(dropVerdict)
	case nfAccept:
		w.step("accept", Step{})
		return verdictAccept, nil
	default:
		return verdictDrop, fmt.Errorf("verdict %d", code)
	}
}

// nfAccept is NF_ACCEPT of include/uapi/linux/netfilter.h.
const nfAccept = 1

// verdictOf reads a verdict.
func verdictOf(ad *netlink.AttributeDecoder) (code int32, chain string) {
	for ad.Next() {
		if ad.Type() != unix.NFTA_DATA_VERDICT {
			continue
		}
		ad.Nested(func(v *netlink.AttributeDecoder) error {
			v.ByteOrder = binary.BigEndian
			for v.Next() {
				switch v.Type() {
				case unix.NFTA_VERDICT_CODE:
					code = int32(v.Uint32())
				case unix.NFTA_VERDICT_CHAIN:
					chain = v.String()
				}
			}
			return nil
		})
	}
	return code, chain
}

// nat takes address and port of the destination from registers.
func (w *walk) nat(e expression) (ruleVerdict, error) {
	if e.number(unix.NFTA_NAT_TYPE) != unix.NFT_NAT_DNAT {
		return verdictDrop, fmt.Errorf("source translation")
	}
	addr, err := w.registers.at(e.number(unix.NFTA_NAT_REG_ADDR_MIN))
	if err != nil {
		return verdictDrop, err
	}
	port, err := w.registers.at(e.number(unix.NFTA_NAT_REG_PROTO_MIN))
	if err != nil {
		return verdictDrop, err
	}
	to, _ := netip.AddrFromSlice(addr[:w.family.addrLen])
	w.dest, w.translated = netip.AddrPortFrom(to, binary.BigEndian.Uint16(port)), true
	w.step("dnat", Step{Detail: "to " + w.dest.String()})
	return verdictAccept, nil
}

// dynset says what the packet would write.
func (w *walk) dynset(e expression) (ruleVerdict, error) {
	set := e.text(unix.NFTA_DYNSET_SET_NAME)
	if holdsPins(set) {
		w.step("pin", Step{Set: set, Detail: "the client stays with this endpoint"})
	} else {
		w.step("learn", Step{Set: set})
	}
	return verdictNext, nil
}

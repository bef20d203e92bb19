// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
)

// ruleVerdict is how to go on after an expression, a rule or a chain.
type ruleVerdict uint8

const (
	// verdictNext goes on with the next expression or rule.
	verdictNext ruleVerdict = iota
	// verdictBreak ends the rule.
	verdictBreak
	// verdictReturn ends the chain.
	verdictReturn
	// verdictAccept ends the base chain.
	verdictAccept
	verdictReject
	verdictDrop
)

// registers are sixteen of four bytes; the first four of sixteen bytes are the same
// memory.
type registers [64]byte

// at returns the memory of a register.
func (r *registers) at(number uint32) ([]byte, error) {
	switch {
	case number >= unix.NFT_REG_1 && number <= unix.NFT_REG_4:
		return r[(number-unix.NFT_REG_1)*16:], nil
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		return r[(number-unix.NFT_REG32_00)*4:], nil
	default:
		return nil, fmt.Errorf("register %d", number)
	}
}

// packet is a packet on its way.
type packet struct {
	registers registers
	protocol  dataplane.Protocol
	source    netip.Addr
	dest      netip.AddrPort
	// original is where the client has sent it.
	original   netip.AddrPort
	in         string
	translated bool
	mark       uint32
}

func newPacket(_ family, q *Question) packet {
	to := netip.AddrPortFrom(q.To.Addr, q.To.Port)
	return packet{protocol: q.To.Protocol, source: q.Client, dest: to, original: to, in: q.In}
}

// runChain runs a chain. At its end it returns.
func (w *walk) runChain(name string) (ruleVerdict, error) {
	const deepest = 16
	if w.depth++; w.depth > deepest {
		return verdictDrop, fmt.Errorf("explain chain %s: more than %d chains deep", name, deepest)
	}
	before := w.chain
	defer func() { w.depth--; w.chain = before }()
	for _, rule := range w.rules[name] {
		w.chain = name
		verdict := verdictNext
		for _, e := range rule {
			var err error
			if verdict, err = w.evaluate(e); err != nil {
				return verdictDrop, fmt.Errorf("explain chain %s: %s: %w", name, e.name, err)
			}
			if verdict != verdictNext {
				break
			}
		}
		if verdict != verdictNext && verdict != verdictBreak {
			return verdict, nil
		}
	}
	return verdictReturn, nil
}

// number returns an attribute that holds one.
func (e expression) number(attr uint16) uint32 {
	if data := e.attrs[attr]; len(data) == 4 {
		return binary.BigEndian.Uint32(data)
	}
	return 0
}

func (e expression) text(attr uint16) string { return strings.TrimRight(string(e.attrs[attr]), "\x00") }

// data returns the value inside a nested attribute.
func (e expression) data(attr uint16) []byte {
	ad, err := netlink.NewAttributeDecoder(e.attrs[attr])
	if err != nil {
		return nil
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_DATA_VALUE {
			return ad.Bytes()
		}
	}
	return nil
}

// evaluate does what an expression says.
func (w *walk) evaluate(e expression) (ruleVerdict, error) {
	switch e.name {
	case "meta":
		return w.load(e, unix.NFTA_META_DREG, w.meta(e.number(unix.NFTA_META_KEY)))
	case "payload":
		return w.load(e, unix.NFTA_PAYLOAD_DREG, w.payload(e))
	case "ct":
		return w.conntrack(e)
	case "fib":
		return w.fib(e)
	case "numgen":
		return w.numgen(e)
	case "hash":
		return w.hash(e)
	case "bitwise":
		return w.bitwise(e)
	case "cmp":
		return w.compare(e)
	case "lookup":
		return w.lookup(e)
	case "immediate":
		return w.immediate(e)
	case "nat":
		return w.nat(e)
	case "dynset":
		return w.dynset(e)
	case "counter":
		return verdictNext, nil
	case "masq":
		w.masquerade, w.why = true, w.whyMasquerade()
		w.step("masquerade", Step{})
		return verdictAccept, nil
	case "reject":
		w.verdict = verdictReject
		w.refuse()
		w.step("reject", Step{})
		return verdictReject, nil
	default:
		return verdictDrop, fmt.Errorf("veridict does not write such an expression")
	}
}

// load puts data into the register that an attribute names. Without data the rule
// ends, as it does in the kernel.
func (w *walk) load(e expression, attr uint16, data []byte) (ruleVerdict, error) {
	if data == nil {
		return verdictBreak, nil
	}
	register, err := w.registers.at(e.number(attr))
	if err != nil {
		return verdictDrop, err
	}
	// Registers are written in words.
	padded := (len(data) + 3) &^ 3
	if padded > len(register) {
		return verdictDrop, fmt.Errorf("%d bytes into register %d", len(data), e.number(attr))
	}
	clear(register[:padded])
	copy(register, data)
	return verdictNext, nil
}

func (w *walk) meta(key uint32) []byte {
	switch key {
	case unix.NFT_META_L4PROTO:
		return []byte{byte(w.protocol)}
	case unix.NFT_META_IIFNAME:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, w.in)
		return name
	default:
		return nil
	}
}

// payload returns a part of the packet's headers. Fields that are not known are
// zero.
func (w *walk) payload(e expression) []byte {
	var header []byte
	switch e.number(unix.NFTA_PAYLOAD_BASE) {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		const before4, before6 = 12, 8
		before := before4
		if w.family.addrLen == 16 {
			before = before6
		}
		header = appendAddr(appendAddr(make([]byte, before), w.source), w.dest.Addr())
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		header = binary.BigEndian.AppendUint16([]byte{0, 0}, w.dest.Port())
	}
	from, length := e.number(unix.NFTA_PAYLOAD_OFFSET), e.number(unix.NFTA_PAYLOAD_LEN)
	if int(from+length) > len(header) {
		return nil
	}
	return header[from : from+length]
}

// Bits of nf_conntrack_common.h: NF_CT_STATE_BIT(IP_CT_NEW) and IPS_DST_NAT.
const (
	stateNew     = 1 << 3
	statusDstNAT = 1 << 5
)

// conntrack loads what connection tracking knows of the first packet, or sets the
// mark.
func (w *walk) conntrack(e expression) (ruleVerdict, error) {
	if _, sets := e.attrs[unix.NFTA_CT_SREG]; sets {
		register, err := w.registers.at(e.number(unix.NFTA_CT_SREG))
		if err == nil {
			w.mark = binary.NativeEndian.Uint32(register)
		}
		return verdictNext, err
	}
	word := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	port := func(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
	reverse := bytes.Equal(e.attrs[unix.NFTA_CT_DIRECTION], []byte{1})
	var data []byte
	switch key := e.number(unix.NFTA_CT_KEY); key {
	case unix.NFT_CT_STATE:
		data = word(stateNew)
	case unix.NFT_CT_STATUS:
		data = word(0)
		if w.translated {
			data = word(statusDstNAT)
		}
	case unix.NFT_CT_MARK:
		data = word(w.mark)
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		data = appendAddr(nil, w.source)
		if reverse {
			data = appendAddr(nil, w.dest.Addr())
		}
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		data = appendAddr(nil, w.original.Addr())
	case unix.NFT_CT_PROTO_SRC:
		data = port(w.dest.Port())
	case unix.NFT_CT_PROTO_DST:
		data = port(w.original.Port())
	default:
		return verdictDrop, fmt.Errorf("conntrack key %d", key)
	}
	return w.load(e, unix.NFTA_CT_DREG, data)
}

// Numbers of include/uapi/linux/netfilter/nf_tables.h, nft_fib_*, and of
// linux/rtnetlink.h.
const (
	fibDREG, fibFlags  = 1, 3
	fibFlagSource      = 1
	fibLocal, fibOther = unix.RTN_LOCAL, unix.RTN_UNICAST
)

func (w *walk) fib(e expression) (ruleVerdict, error) {
	addr := w.dest.Addr()
	if e.number(fibFlags)&fibFlagSource != 0 {
		addr = w.source
	}
	local, err := w.locate.IsLocal(addr)
	if err != nil {
		return verdictDrop, err
	}
	kind := uint32(fibOther)
	if local {
		kind = fibLocal
	}
	return w.load(e, fibDREG, binary.NativeEndian.AppendUint32(nil, kind))
}

func (w *walk) numgen(e expression) (ruleVerdict, error) {
	n, drawn := e.number(unix.NFTA_NG_MODULUS), uint32(0)
	if n == 0 {
		return verdictDrop, fmt.Errorf("modulus 0")
	}
	if n > 1 {
		if e.number(unix.NFTA_NG_TYPE) != unix.NFT_NG_RANDOM {
			return verdictDrop, fmt.Errorf("a counter")
		}
		drawn = uint32(w.branches.draw(int(n)))
		w.step("draw", Step{Detail: fmt.Sprintf("one of %d buckets at random", n)})
	}
	if e.number(unix.NFTA_NG_TYPE) == unix.NFT_NG_RANDOM {
		w.drawn = true
	}
	return w.load(e, unix.NFTA_NG_DREG, appendWord(nil, drawn+e.number(unix.NFTA_NG_OFFSET)))
}

func (w *walk) bitwise(e expression) (ruleVerdict, error) {
	register, err := w.registers.at(e.number(unix.NFTA_BITWISE_SREG))
	if err != nil {
		return verdictDrop, err
	}
	mask, xor := e.data(unix.NFTA_BITWISE_MASK), e.data(unix.NFTA_BITWISE_XOR)
	if len(mask) != len(xor) || len(mask) > len(register) {
		return verdictDrop, fmt.Errorf("an operation that is no mask")
	}
	data := slices.Clone(register[:len(mask)])
	for i := range data {
		data[i] = data[i]&mask[i] ^ xor[i]
	}
	return w.load(e, unix.NFTA_BITWISE_DREG, data)
}

func (w *walk) compare(e expression) (ruleVerdict, error) {
	register, err := w.registers.at(e.number(unix.NFTA_CMP_SREG))
	data := e.data(unix.NFTA_CMP_DATA)
	if err != nil || len(data) > len(register) {
		return verdictDrop, fmt.Errorf("%d bytes of register %d", len(data), e.number(unix.NFTA_CMP_SREG))
	}
	equal := bytes.Equal(register[:len(data)], data)
	switch op := e.number(unix.NFTA_CMP_OP); op {
	case unix.NFT_CMP_EQ:
		if !equal {
			return verdictBreak, nil
		}
	case unix.NFT_CMP_NEQ:
		if equal {
			return verdictBreak, nil
		}
	default:
		return verdictDrop, fmt.Errorf("comparison %d", op)
	}
	return verdictNext, nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
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
	case "byteorder":
		return w.byteOrder(e)
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

// Numbers of enum nft_hash_attributes.
const (
	hashSREG, hashDREG, hashLen, hashModulus, hashSeedAttr, hashOffset = 1, 2, 3, 4, 5, 6
)

// hash computes what the kernel computes, so that the bucket of a client is known.
func (w *walk) hash(e expression) (ruleVerdict, error) {
	register, err := w.registers.at(e.number(hashSREG))
	length := e.number(hashLen)
	if err != nil || int(length) > len(register) {
		return verdictDrop, fmt.Errorf("%d bytes of register %d", length, e.number(hashSREG))
	}
	n := e.number(hashModulus)
	bucket := uint32(uint64(jhash(register[:length], e.number(hashSeedAttr))) * uint64(n) >> 32)
	w.drawn = true
	w.step("draw", Step{Detail: fmt.Sprintf("bucket %d of %d by the hash of the client's address", bucket, n)})
	return w.load(e, hashDREG, appendWord(nil, bucket+e.number(hashOffset)))
}

// jhash is the hash function of include/linux/jhash.h for keys of whole words.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(key[4*i:]) }
	for ; len(key) > 12; key = key[12:] {
		a, b, c = a+word(0), b+word(1), c+word(2)
		for _, turn := range [][2]int{{4, 6}, {8, 16}, {19, 4}} {
			a, b, c = jhashTurn(a, b, c, turn[0])
			a, b, c = b, c, a
			a, b, c = jhashTurn(a, b, c, turn[1])
			a, b, c = b, c, a
		}
	}
	switch len(key) {
	case 12:
		c += word(2)
		fallthrough
	case 8:
		b += word(1)
		fallthrough
	case 4:
		a += word(0)
	}
	for _, turn := range []int{14, 11, 25, 16, 4, 14, 24} {
		c ^= b
		c -= bits.RotateLeft32(b, turn)
		a, b, c = b, c, a
	}
	return b
}

// jhashTurn is a third of a half of the function that mixes.
func jhashTurn(a, b, c uint32, turn int) (uint32, uint32, uint32) {
	a -= c
	a ^= bits.RotateLeft32(c, turn)
	c += b
	return a, b, c
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

// byteOrder turns the bytes of each number around, as the kernel does on a machine
// whose order is not that of the network.
func (w *walk) byteOrder(e expression) (ruleVerdict, error) {
	register, err := w.registers.at(e.number(unix.NFTA_BYTEORDER_SREG))
	length, size := e.number(unix.NFTA_BYTEORDER_LEN), e.number(unix.NFTA_BYTEORDER_SIZE)
	if err != nil || int(length) > len(register) || size == 0 {
		return verdictDrop, fmt.Errorf("%d bytes of numbers of %d", length, size)
	}
	data := slices.Clone(register[:length])
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		// nft 1.0.6 asks for this for protocols, too, which are too short.
		for number := range slices.Chunk(data[:length-length%size], int(size)) {
			slices.Reverse(number)
		}
	}
	return w.load(e, unix.NFTA_BYTEORDER_DREG, data)
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

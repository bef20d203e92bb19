// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// element is one element of a set or map, as the kernel holds it: fields in
// network byte order, each padded to four bytes, buckets, marks and ids in the
// machine's byte order because the kernel computes with them.
type element struct {
	set string
	key string
	// end is the last key of a range, empty for a single key.
	end string
	// data is the value of a data map.
	data string
	// verdict is the value of a verdict map, in nft's words.
	verdict string
	// timeout is how long a pin stays from now on, and in how long a pin that was
	// found goes.
	timeout time.Duration
}

// Verdicts: dropVerdict, "goto NAME" and "jump NAME".
const (
	dropVerdict = "drop"
	gotoPrefix  = "goto "
	jumpPrefix  = "jump "
)

func gotoVerdict(chain string) string { return gotoPrefix + chain }
func jumpVerdict(chain string) string { return jumpPrefix + chain }

// chainOf returns the chain that a verdict leads to, empty if it leads to none.
func chainOf(verdict string) string {
	if chain, ok := strings.CutPrefix(verdict, gotoPrefix); ok {
		return chain
	}
	chain, _ := strings.CutPrefix(verdict, jumpPrefix)
	if chain == verdict {
		return ""
	}
	return chain
}

// maxKey is the length of the longest key: two IPv6 addresses and two words.
const maxKey = 40

// appendAddr, appendProtocol, appendPort and appendWord append one field to a key
// or value.
func appendAddr(key []byte, addr netip.Addr) []byte {
	if addr.Is4() {
		b := addr.As4()
		return append(key, b[:]...)
	}
	b := addr.As16()
	return append(key, b[:]...)
}

func appendProtocol(key []byte, p dataplane.Protocol) []byte { return append(key, byte(p), 0, 0, 0) }

func appendPort(key []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(key, port), 0, 0)
}

func appendWord(key []byte, word uint32) []byte { return binary.NativeEndian.AppendUint32(key, word) }

func appendVIP(key []byte, vip dataplane.VIP) []byte {
	if !vip.IsNodePort() {
		key = appendAddr(key, vip.Addr)
	}
	return appendPort(appendProtocol(key, vip.Protocol), vip.Port)
}

// vipKey is the key of the maps and sets of VIPs and of NodePorts.
func vipKey(vip dataplane.VIP) string {
	return string(appendVIP(make([]byte, 0, maxKey), vip))
}

// row returns the element that leads from a bucket of vip in scope s to an
// endpoint.
func (l Layout) row(vip dataplane.VIP, s scope, bucket uint32, endpoint netip.AddrPort) element {
	key := make([]byte, 0, maxKey)
	if !vip.IsNodePort() {
		key = appendAddr(key, vip.Addr)
	}
	if l == CTMark {
		key = appendProtocol(key, vip.Protocol)
	}
	key = appendWord(appendPort(key, vip.Port), bucket+s.offset())
	e := element{set: l.rowsMap(vip.IsNodePort(), vip.Protocol), key: string(key)}
	if endpoint.IsValid() {
		e.data = endpointData(endpoint)
	}
	return e
}

func endpointData(endpoint netip.AddrPort) string {
	data := make([]byte, 0, maxKey)
	return string(appendPort(appendAddr(data, endpoint.Addr()), endpoint.Port()))
}

// addrElement is the element of a set of addresses.
func addrElement(set string, addr netip.Addr) element {
	return element{set: set, key: string(appendAddr(make([]byte, 0, maxKey), addr))}
}

func clusterIPElement(addr netip.Addr) element { return addrElement(clusterIPs, addr) }

func nodePortIPElement(addr netip.Addr) element { return addrElement(nodePortIPs, addr) }

// rangeElement is a range of clients that may connect to vip.
func rangeElement(vip dataplane.VIP, r addrRange) element {
	key := appendPort(appendAddr(make([]byte, 0, maxKey), vip.Addr), vip.Port)
	return element{
		set: sourceRanges + vip.Protocol.String(),
		key: string(appendAddr(key, r.from)), end: string(appendAddr(slices.Clip(key), r.to)),
	}
}

// hairpin is an endpoint of this node as it is seen after translation: a packet
// whose source is the endpoint itself has to be masqueraded, or the pod would
// answer itself past the node.
type hairpin struct {
	endpoint netip.AddrPort
	protocol dataplane.Protocol
}

func (h hairpin) element() element {
	addr := h.endpoint.Addr()
	key := appendAddr(appendAddr(make([]byte, 0, maxKey), addr), addr)
	return element{set: hairpinConnections, key: string(appendPort(appendProtocol(key, h.protocol), h.endpoint.Port()))}
}

// compareVIPs orders by address, port and protocol. NodePorts come first.
func compareVIPs(a, b dataplane.VIP) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// keyReader takes a key or value apart. After the last field, ok says whether
// all fields were there and nothing is left over.
type keyReader struct {
	rest []byte
	bad  bool
}

func (r *keyReader) next(n int) []byte {
	padded := (n + 3) &^ 3
	if len(r.rest) < padded {
		r.bad = true
		return make([]byte, n)
	}
	b := r.rest[:n]
	r.rest = r.rest[padded:]
	return b
}

func (r *keyReader) addr(f family) netip.Addr {
	addr, _ := netip.AddrFromSlice(r.next(f.addrLen))
	return addr
}

func (r *keyReader) protocol() dataplane.Protocol { return dataplane.Protocol(r.next(1)[0]) }
func (r *keyReader) port() uint16                 { return binary.BigEndian.Uint16(r.next(2)) }
func (r *keyReader) word() uint32                 { return binary.NativeEndian.Uint32(r.next(4)) }
func (r *keyReader) ok() bool                     { return !r.bad && len(r.rest) == 0 }

// parseVIP is the reverse of vipKey. Of the key of a range it reads the beginning.
func parseVIP(f family, set, key string) (dataplane.VIP, bool) {
	r := keyReader{rest: []byte(key)}
	var vip dataplane.VIP
	if keyFields(set)[0] == addrField {
		vip.Addr = r.addr(f)
	}
	if strings.HasPrefix(set, sourceRanges) {
		vip.Protocol, vip.Port = protocolOfMap(set), r.port()
		return vip, !r.bad && vip.Protocol != 0
	}
	vip.Protocol, vip.Port = r.protocol(), r.port()
	return vip, r.ok()
}

// parseRow is the reverse of row.
func (l Layout) parseRow(f family, e element) (vip dataplane.VIP, s scope, bucket uint32, endpoint netip.AddrPort, ok bool) {
	r := keyReader{rest: []byte(e.key)}
	if keyFields(e.set)[0] == addrField {
		vip.Addr = r.addr(f)
	}
	if l == CTMark {
		vip.Protocol = r.protocol()
	} else {
		vip.Protocol = protocolOfMap(e.set)
	}
	vip.Port, bucket = r.port(), r.word()
	if bucket >= localOffset {
		s, bucket = localScope, bucket-localOffset
	}
	endpoint, valid := parseEndpoint(f, e.data)
	return vip, s, bucket, endpoint, r.ok() && valid && vip.Protocol != 0 && bucket < localOffset
}

func parseEndpoint(f family, data string) (netip.AddrPort, bool) {
	r := keyReader{rest: []byte(data)}
	endpoint := netip.AddrPortFrom(r.addr(f), r.port())
	return endpoint, r.ok()
}

// protocolOfMap returns the protocol that the name of a map ends in.
func protocolOfMap(name string) dataplane.Protocol {
	for _, p := range dataplane.Protocols() {
		if strings.HasSuffix(name, "-"+p.String()) {
			return p
		}
	}
	return 0
}

func parseHairpin(f family, key string) (hairpin, bool) {
	r := keyReader{rest: []byte(key)}
	source, dest := r.addr(f), r.addr(f)
	h := hairpin{protocol: r.protocol(), endpoint: netip.AddrPortFrom(dest, r.port())}
	return h, r.ok() && source == dest
}

// text returns the element as nft writes it, "key" or "key : value".
func (e element) text(f family) string {
	key, value := e.keyText(f), e.verdict
	if e.data != "" {
		value = fieldsText(f, e.data, endpointFields())
	}
	if value == "" {
		return key
	}
	return key + " : " + value
}

// keyText returns the key, and the end of a range behind a dash.
func (e element) keyText(f family) string {
	fields := keyFields(e.set)
	text := fieldsText(f, e.key, fields)
	if e.end == "" || e.end == e.key {
		return text
	}
	end := fieldsText(f, e.end, fields)
	return text + "-" + end[strings.LastIndexByte(end, ' ')+1:]
}

func fieldsText(f family, data string, fields []field) string {
	r := keyReader{rest: []byte(data)}
	words := make([]string, len(fields))
	for i, part := range fields {
		switch part {
		case addrField:
			words[i] = r.addr(f).String()
		case protocolField:
			words[i] = r.protocol().String()
		case portField:
			words[i] = fmt.Sprint(r.port())
		case wordField:
			words[i] = fmt.Sprint(r.word())
		}
	}
	return strings.Join(words, " . ")
}

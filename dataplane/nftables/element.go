// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/veridict/veridict/dataplane"
)

// element is one element of a set or map, as the kernel holds it: fields in
// network byte order, each padded to four bytes, buckets and marks in the
// machine's byte order because the kernel computes with them.
type element struct {
	set string
	key string
	// data is the value of a data map.
	data string
	// verdict is the value of a verdict map, in nft's words.
	verdict string
}

// Verdicts other than "goto NAME".
const dropVerdict = "drop"

func gotoVerdict(chain string) string { return "goto " + chain }

// maxKey is the length of the longest key: two IPv6 addresses and two words.
const maxKey = 40

// addrField, protocolField and portField append one field to a key or value.
func addrField(key []byte, addr netip.Addr) []byte {
	if addr.Is4() {
		b := addr.As4()
		return append(key, b[:]...)
	}
	b := addr.As16()
	return append(key, b[:]...)
}

func protocolField(key []byte, p dataplane.Protocol) []byte { return append(key, byte(p), 0, 0, 0) }

func portField(key []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(key, port), 0, 0)
}

// vipKey is the key of the verdict maps.
func vipKey(vip dataplane.VIP) string {
	key := make([]byte, 0, maxKey)
	return string(portField(protocolField(addrField(key, vip.Addr), vip.Protocol), vip.Port))
}

// row returns the element that leads from a bucket of vip to an endpoint.
func (l Layout) row(vip dataplane.VIP, bucket uint32, endpoint netip.AddrPort) element {
	key := addrField(make([]byte, 0, maxKey), vip.Addr)
	if l == CTMark {
		key = protocolField(key, vip.Protocol)
	}
	key = binary.NativeEndian.AppendUint32(portField(key, vip.Port), bucket)
	e := element{set: l.endpointsMap(vip.Protocol), key: string(key)}
	if endpoint.IsValid() {
		data := make([]byte, 0, maxKey)
		e.data = string(portField(addrField(data, endpoint.Addr()), endpoint.Port()))
	}
	return e
}

func serviceElement(vip dataplane.VIP, n int) element {
	return element{set: serviceIPs, key: vipKey(vip), verdict: gotoVerdict(dispatchName(n))}
}

func rejectElement(vip dataplane.VIP) element {
	return element{set: noEndpointServices, key: vipKey(vip), verdict: gotoVerdict(rejectChain)}
}

func clusterIPElement(addr netip.Addr) element {
	return element{set: clusterIPs, key: string(addrField(make([]byte, 0, maxKey), addr))}
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
	key := addrField(addrField(make([]byte, 0, maxKey), addr), addr)
	return element{set: hairpinConnections, key: string(portField(protocolField(key, h.protocol), h.endpoint.Port()))}
}

// compareVIPs orders by address, port and protocol.
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
func (r *keyReader) bucket() uint32               { return binary.NativeEndian.Uint32(r.next(4)) }
func (r *keyReader) ok() bool                     { return !r.bad && len(r.rest) == 0 }

func parseVIP(f family, key string) (dataplane.VIP, bool) {
	r := keyReader{rest: []byte(key)}
	vip := dataplane.VIP{Addr: r.addr(f), Protocol: r.protocol(), Port: r.port()}
	return vip, r.ok()
}

// parseRow is the reverse of row.
func (l Layout) parseRow(f family, e element) (vip dataplane.VIP, bucket uint32, endpoint netip.AddrPort, ok bool) {
	r := keyReader{rest: []byte(e.key)}
	vip.Addr = r.addr(f)
	if l == CTMark {
		vip.Protocol = r.protocol()
	} else {
		vip.Protocol = protocolOfMap(e.set)
	}
	vip.Port, bucket = r.port(), r.bucket()
	endpoint, valid := parseEndpoint(f, e.data)
	return vip, bucket, endpoint, r.ok() && valid && vip.Protocol != 0
}

func parseEndpoint(f family, data string) (netip.AddrPort, bool) {
	r := keyReader{rest: []byte(data)}
	endpoint := netip.AddrPortFrom(r.addr(f), r.port())
	return endpoint, r.ok()
}

func protocolOfMap(name string) dataplane.Protocol {
	for _, p := range dataplane.Protocols() {
		if MarkFree.endpointsMap(p) == name {
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
func (l Layout) text(f family, e element) string {
	key, value := l.keyText(f, e), e.verdict
	if e.data != "" {
		endpoint, _ := parseEndpoint(f, e.data)
		value = fmt.Sprintf("%s . %d", endpoint.Addr(), endpoint.Port())
	}
	if value == "" {
		return key
	}
	return key + " : " + value
}

func (l Layout) keyText(f family, e element) string {
	r := keyReader{rest: []byte(e.key)}
	switch e.set {
	case clusterIPs:
		return r.addr(f).String()
	case serviceIPs, noEndpointServices:
		return fmt.Sprintf("%s . %s . %d", r.addr(f), r.protocol(), r.port())
	case hairpinConnections:
		return fmt.Sprintf("%s . %s . %s . %d", r.addr(f), r.addr(f), r.protocol(), r.port())
	case markedEndpoints:
		return fmt.Sprintf("%s . %s . %d . %d", r.addr(f), r.protocol(), r.port(), r.bucket())
	default:
		return fmt.Sprintf("%s . %d . %d", r.addr(f), r.port(), r.bucket())
	}
}

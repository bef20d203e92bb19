// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/veridict/veridict/dataplane"
)

var elementVIPs = []dataplane.VIP{
	{Addr: netip.MustParseAddr("172.30.0.41"), Protocol: dataplane.TCP, Port: 80},
	{Addr: netip.MustParseAddr("172.30.0.10"), Protocol: dataplane.UDP, Port: 53},
	{Addr: netip.MustParseAddr("255.255.255.255"), Protocol: dataplane.SCTP, Port: 65535},
	{Addr: netip.MustParseAddr("fd00:30::41"), Protocol: dataplane.TCP, Port: 443},
	{Addr: netip.MustParseAddr("::ffff:10.0.0.1"), Protocol: dataplane.UDP, Port: 1},
}

func familyFor(addr netip.Addr) family {
	for _, f := range families() {
		if f.id == dataplane.FamilyOf(addr) {
			return f
		}
	}
	panic("no family")
}

func TestRowRoundTrip(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		for _, vip := range elementVIPs {
			endpoint := netip.AddrPortFrom(vip.Addr.Next(), 8080)
			if !endpoint.Addr().IsValid() {
				endpoint = netip.AddrPortFrom(vip.Addr, 8080)
			}
			f := familyFor(vip.Addr)
			for _, vip := range []dataplane.VIP{vip, {Protocol: vip.Protocol, Port: vip.Port}} {
				for _, bucket := range []uint32{0, 1, 255, 256, 65535} {
					for in := range scopes {
						e := layout.row(vip, in, bucket, endpoint)
						gotVIP, gotScope, gotBucket, gotEndpoint, ok := layout.parseRow(f, e)
						if !ok || gotVIP != vip || gotScope != in || gotBucket != bucket || gotEndpoint != endpoint {
							t.Errorf("%s scope %d bucket %d to %s came back as %s scope %d bucket %d to %s, %t",
								vip, in, bucket, endpoint, gotVIP, gotScope, gotBucket, gotEndpoint, ok)
						}
					}
				}
			}
		}
	})
}

func TestKeyRoundTrips(t *testing.T) {
	for _, vip := range elementVIPs {
		f := familyFor(vip.Addr)
		nodePort := dataplane.VIP{Protocol: vip.Protocol, Port: vip.Port}
		for set, vip := range map[string]dataplane.VIP{"service-ips": vip, "service-nodeports": nodePort} {
			if got, ok := parseVIP(f, set, vipKey(vip)); !ok || got != vip {
				t.Errorf("VIP %s came back as %s, %t", vip, got, ok)
			}
		}
		h := hairpin{netip.AddrPortFrom(vip.Addr, vip.Port), vip.Protocol}
		if got, ok := parseHairpin(f, h.element().key); !ok || got != h {
			t.Errorf("hairpin %v came back as %v, %t", h, got, ok)
		}
	}
}

func TestElementText(t *testing.T) {
	web := elementVIPs[0]
	web6 := elementVIPs[3]
	nodePort := dataplane.VIP{Protocol: dataplane.TCP, Port: 30080}
	endpoint, endpoint6 := netip.MustParseAddrPort("10.180.0.1:8080"), netip.MustParseAddrPort("[fd00:180::1]:8080")
	cases := []struct {
		element element
		f       family
		want    string
	}{
		{serviceElement(web, 3), families()[0], "172.30.0.41 . tcp . 80 : goto cluster-3"},
		{rejectElement(web6), families()[1], "fd00:30::41 . tcp . 443 : goto reject-chain"},
		{clusterIPElement(web.Addr), families()[0], "172.30.0.41"},
		{MarkFree.row(web, clusterScope, 2, endpoint), families()[0], "172.30.0.41 . 80 . 2 : 10.180.0.1 . 8080"},
		{CTMark.row(web, clusterScope, 2, endpoint), families()[0], "172.30.0.41 . tcp . 80 . 2 : 10.180.0.1 . 8080"},
		{MarkFree.row(web6, clusterScope, 300, endpoint6), families()[1], "fd00:30::41 . 443 . 300 : fd00:180::1 . 8080"},
		{MarkFree.row(web, localScope, 2, endpoint), families()[0], "172.30.0.41 . 80 . 65538 : 10.180.0.1 . 8080"},
		{MarkFree.row(nodePort, clusterScope, 2, endpoint), families()[0], "30080 . 2 : 10.180.0.1 . 8080"},
		{CTMark.row(nodePort, localScope, 0, endpoint), families()[0], "tcp . 30080 . 65536 : 10.180.0.1 . 8080"},
		{serviceElement(nodePort, 2), families()[0], "tcp . 30080 : goto cluster-2"},
		{rangeElement(web, addrRange{web.Addr, web.Addr.Next()}), families()[0], "172.30.0.41 . 80 . 172.30.0.41-172.30.0.42"},
		{rangeElement(web, addrRange{web.Addr, web.Addr}), families()[0], "172.30.0.41 . 80 . 172.30.0.41"},
		{pinElement(pinGroup{vip: web}, netip.MustParseAddr("10.1.2.3"), endpoint), families()[0], "10.1.2.3 . 172.30.0.41 . 80 : 10.180.0.1 . 8080"},
		{pinElement(pinGroup{vip: nodePort, id: 7}, netip.MustParseAddr("10.1.2.3"), endpoint), families()[0], "10.1.2.3 . 7 : 10.180.0.1 . 8080"},
		{hairpin{endpoint, dataplane.SCTP}.element(), families()[0], "10.180.0.1 . 10.180.0.1 . sctp . 8080"},
	}
	for _, tc := range cases {
		if got := tc.element.text(tc.f); got != tc.want {
			t.Errorf("element of %s is %q, want %q", tc.element.set, got, tc.want)
		}
	}
}

// The kernel computes with buckets, and compares everything else as bytes.
func TestElementBytes(t *testing.T) {
	e := CTMark.row(elementVIPs[0], clusterScope, 7, netip.MustParseAddrPort("10.180.0.1:8080"))
	key := "\xac\x1e\x00\x29" + "\x06\x00\x00\x00" + "\x00\x50\x00\x00" + string(binary.NativeEndian.AppendUint32(nil, 7))
	if e.key != key {
		t.Errorf("key % x, want % x", e.key, key)
	}
	if data := "\x0a\xb4\x00\x01" + "\x1f\x90\x00\x00"; e.data != data {
		t.Errorf("data % x, want % x", e.data, data)
	}
}

func TestElementsOfAnotherShapeAreNotRead(t *testing.T) {
	f := families()[0]
	vip := vipKey(elementVIPs[0])
	for _, key := range []string{"", vip[:len(vip)-1], vip + "\x00", strings.Repeat("x", 100)} {
		if got, ok := parseVIP(f, "service-ips", key); ok {
			t.Errorf("VIP % x was read as %s", key, got)
		}
	}
	h := hairpin{netip.MustParseAddrPort("10.180.0.1:8080"), dataplane.TCP}.element().key
	if _, ok := parseHairpin(f, "\x0a\xb4\x00\x02"+h[4:]); ok {
		t.Error("a hairpin with two addresses was read")
	}
	row := MarkFree.row(elementVIPs[0], clusterScope, 1, netip.MustParseAddrPort("10.180.0.1:8080"))
	row.set = "endpoints-dccp"
	if _, _, _, _, ok := MarkFree.parseRow(f, row); ok {
		t.Error("a row of an unknown protocol was read")
	}
}

// What is found in the kernel is read without a panic, and what was read stays
// the same when it is written and read again.
func FuzzParseElements(f *testing.F) {
	for _, vip := range elementVIPs {
		for _, layout := range layouts() {
			e := layout.row(vip, clusterScope, 3, netip.AddrPortFrom(vip.Addr, 80))
			f.Add(e.set, e.key, e.data)
		}
		f.Add("service-ips", vipKey(vip), "")
		f.Add(hairpinConnections, hairpin{netip.AddrPortFrom(vip.Addr, 80), vip.Protocol}.element().key, "")
	}
	f.Fuzz(func(t *testing.T, set, key, data string) {
		for _, fam := range families() {
			if vip, ok := parseVIP(fam, "service-ips", key); ok {
				if again, ok := parseVIP(fam, "service-ips", vipKey(vip)); !ok || again != vip {
					t.Errorf("VIP %s came back as %s, %t", vip, again, ok)
				}
			}
			if h, ok := parseHairpin(fam, key); ok {
				if again, ok := parseHairpin(fam, h.element().key); !ok || again != h {
					t.Errorf("hairpin %v came back as %v, %t", h, again, ok)
				}
			}
			for _, layout := range layouts() {
				fuzzRow(t, fam, layout, element{set: set, key: key, data: data})
			}
		}
	})
}

func fuzzRow(t *testing.T, f family, layout Layout, e element) {
	_ = e.text(f)
	vip, in, bucket, endpoint, ok := layout.parseRow(f, e)
	if !ok {
		return
	}
	vip2, in2, bucket2, endpoint2, ok := layout.parseRow(f, layout.row(vip, in, bucket, endpoint))
	if !ok || vip2 != vip || in2 != in || bucket2 != bucket || endpoint2 != endpoint {
		t.Errorf("%s bucket %d to %s came back as %s bucket %d to %s, %t", vip, bucket, endpoint, vip2, bucket2, endpoint2, ok)
	}
}

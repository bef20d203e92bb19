// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// Vectors by a program of its own, which agrees with the published ones of lookup3.
func TestJHash(t *testing.T) {
	t.Parallel()
	address := func(s string) string { return string(appendAddr(nil, netip.MustParseAddr(s))) }
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Fatal("the vectors are for little-endian machines")
	}
	for _, test := range []struct {
		key        string
		seed, want uint32
	}{
		{address("10.0.0.1"), 0, 0x2fa5f781},
		{address("10.0.0.1"), 0x12345678, 0x3eebb340},
		{address("192.0.2.77"), 0, 0xd76b5428},
		{address("192.0.2.77"), 0x12345678, 0x6e2023b7},
		{address("2001:db8::1"), 0, 0x0e5b0adb},
		{address("2001:db8::1"), 0x12345678, 0xb0051bfc},
		{"Four sco", 7, 0x6dc080e0},
		{"Four score a", 7, 0x69f279f1},
		{"Four score and seven years a", 7, 0xf3bf5619},
	} {
		if got := jhash([]byte(test.key), test.seed); got != test.want {
			t.Errorf("jhash(%q, %#x) = %#x, want %#x", test.key, test.seed, got, test.want)
		}
	}
}

// localAddrs are the addresses of the node.
type localAddrs []netip.Addr

func (l localAddrs) IsLocal(addr netip.Addr) (bool, error) {
	return slices.Contains(l, addr), nil
}

// heldElements are elements by set and key.
type heldElements map[[2]string]*element

func (h heldElements) find(_ context.Context, set, key string) (*element, error) {
	return h[[2]string{set, key}], nil
}

func (h heldElements) add(e element) { h[[2]string{e.set, e.key}] = &e }

// Expressions as nft writes them.
func expr(name string, numbers map[uint16]uint32) expression {
	e := expression{name: name, attrs: make(map[uint16][]byte)}
	for attr, n := range numbers {
		e.attrs[attr] = binary.BigEndian.AppendUint32(nil, n)
	}
	return e
}

func (e expression) with(attr uint16, data string) expression {
	e.attrs[attr] = []byte(data)
	return e
}

func field32(t *testing.T, register uint32, base, offset, length uint32) expression {
	t.Helper()
	return expr("payload", map[uint16]uint32{
		unix.NFTA_PAYLOAD_DREG: register, unix.NFTA_PAYLOAD_BASE: base, unix.NFTA_PAYLOAD_OFFSET: offset, unix.NFTA_PAYLOAD_LEN: length,
	})
}

// nested is the value of an attribute that holds one of kind.
func nested(t *testing.T, kind uint16, data []byte) string {
	t.Helper()
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: kind, Data: data}})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const (
	first  = unix.NFT_REG32_00
	second = unix.NFT_REG32_01
	third  = unix.NFT_REG32_02
)

// vipLookup is "ip daddr . meta l4proto . th dport", looked up in a set.
func vipLookup(t *testing.T, set string, into map[uint16]uint32) []expression {
	lookup := expr("lookup", into).with(unix.NFTA_LOOKUP_SET, set+"\x00")
	lookup.attrs[unix.NFTA_LOOKUP_SREG] = binary.BigEndian.AppendUint32(nil, first)
	return []expression{
		field32(t, first, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
		expr("meta", map[uint16]uint32{unix.NFTA_META_KEY: unix.NFT_META_L4PROTO, unix.NFTA_META_DREG: second}),
		field32(t, third, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2),
		lookup,
	}
}

// dispatch is "dnat ip addr . port to ip daddr . tcp dport . DRAW map @endpoints-tcp".
func dispatch(t *testing.T, draw ...expression) []expression {
	rows := MarkFree.rowsMap(false, dataplane.TCP)
	rule := []expression{
		field32(t, first, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
		field32(t, second, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2),
	}
	rule = append(rule, draw...)
	return append(rule,
		expr("lookup", map[uint16]uint32{unix.NFTA_LOOKUP_SREG: first, unix.NFTA_LOOKUP_DREG: first}).with(unix.NFTA_LOOKUP_SET, rows+"\x00"),
		expr("nat", map[uint16]uint32{
			unix.NFTA_NAT_TYPE: unix.NFT_NAT_DNAT, unix.NFTA_NAT_REG_ADDR_MIN: first, unix.NFTA_NAT_REG_PROTO_MIN: second,
		}))
}

func randomDraw(n uint32) expression {
	return expr("numgen", map[uint16]uint32{unix.NFTA_NG_DREG: third, unix.NFTA_NG_MODULUS: n, unix.NFTA_NG_TYPE: unix.NFT_NG_RANDOM})
}

func verdictRegister() map[uint16]uint32 {
	return map[uint16]uint32{unix.NFTA_LOOKUP_DREG: unix.NFT_REG_VERDICT}
}

// newExplainer has a Service of three buckets, two of them of the endpoint that
// bucket 0 does not lead to.
func newExplainer(t *testing.T) (*explainer, heldElements) {
	t.Helper()
	vip := dataplane.VIP{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: dataplane.TCP, Port: 80}
	held := make(heldElements)
	held.add(element{set: serviceMap, key: vipKey(vip), verdict: gotoVerdict("cluster-3")})
	for bucket, endpoint := range []string{"10.1.0.9:8080", "10.1.0.2:8080", "10.1.0.2:8080"} {
		held.add(MarkFree.row(vip, 0, uint32(bucket), netip.MustParseAddrPort(endpoint)))
	}
	return &explainer{
		family:   families()[0],
		question: Question{Client: netip.MustParseAddr("10.1.0.7"), In: "veth1", To: vip},
		locate:   localAddrs{netip.MustParseAddr("192.168.0.1")},
		elements: held,
		chains: []chainInfo{
			{name: "filter-forward", base: &baseChain{hook: knftables.ForwardHook}},
			{name: "nat-prerouting", base: &baseChain{hook: knftables.PreroutingHook}},
		},
		rules: map[string][][]expression{
			"nat-prerouting": {vipLookup(t, serviceMap, verdictRegister())},
			"cluster-3":      {dispatch(t, randomDraw(3))},
			"filter-forward": {vipLookup(t, noEndpointMap, verdictRegister())},
			rejectChain:      {{expr("reject", nil)}},
		},
	}, held
}

func explained(t *testing.T, e *explainer) *Explanation {
	t.Helper()
	out, err := e.explain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestExplainBuckets(t *testing.T) {
	t.Parallel()
	e, _ := newExplainer(t)
	out := explained(t, e)
	want := []Target{
		{Endpoint: netip.MustParseAddrPort("10.1.0.2:8080"), Probability: 2.0 / 3, Buckets: 2, Why: "no rule asks for it"},
		{Endpoint: netip.MustParseAddrPort("10.1.0.9:8080"), Probability: 1.0 / 3, Buckets: 1, Why: "no rule asks for it"},
	}
	if diff := cmp.Diff(want, out.Targets, cmpopts.EquateApprox(0, 1e-9), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if last := out.Steps[len(out.Steps)-1]; last.Detail != "to 10.1.0.2:8080" {
		t.Errorf("the steps end with %+v, want the way to the likeliest endpoint", last)
	}
}

func TestExplainHash(t *testing.T) {
	t.Parallel()
	e, _ := newExplainer(t)
	e.rules["cluster-3"] = [][]expression{dispatch(t,
		field32(t, third, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4),
		expr("hash", map[uint16]uint32{hashSREG: third, hashDREG: third, hashLen: 4, hashModulus: 3}))}
	// 0x2fa5f781 and 0xd76b5428, scaled to three buckets, are 0 and 2.
	for client, want := range map[string]string{"10.0.0.1": "10.1.0.9:8080", "192.0.2.77": "10.1.0.2:8080"} {
		e.question.Client = netip.MustParseAddr(client)
		out := explained(t, e)
		if len(out.Targets) != 1 || out.Targets[0].Endpoint.String() != want || out.Targets[0].Probability != 1 {
			t.Errorf("%s comes to %+v, want %s alone", client, out.Targets, want)
		}
	}
}

func TestExplainMisses(t *testing.T) {
	t.Parallel()
	const frontend = "10.96.0.1"
	for _, test := range []struct {
		name    string
		change  func(*explainer, heldElements)
		verdict string
		reason  string
	}{
		{"no such VIP", func(e *explainer, _ heldElements) { e.question.To.Port = 81 }, Untranslated, "no Service has"},
		{"an address that takes no NodePorts", func(e *explainer, held heldElements) {
			e.question.To.Addr, e.question.To.Port = netip.MustParseAddr("192.168.0.2"), 30080
			key := vipKey(dataplane.VIP{Protocol: dataplane.TCP, Port: 30080})
			held.add(element{set: byKey(serviceMap, true), key: key, verdict: gotoVerdict("nodeport-1")})
		}, Untranslated, "is a NodePort, but"},
		{"no endpoints", func(e *explainer, held heldElements) {
			delete(held, [2]string{serviceMap, vipKey(e.question.To)})
			held.add(element{set: noEndpointMap, key: vipKey(e.question.To), verdict: gotoVerdict(rejectChain)})
		}, Rejected, "no endpoints"},
		{"no local endpoints", func(e *explainer, held heldElements) {
			delete(held, [2]string{serviceMap, vipKey(e.question.To)})
			held.add(element{set: noEndpointMap, key: vipKey(e.question.To), verdict: dropVerdict})
		}, Dropped, "policy is Local"},
		{"endpoints that are rejected after the translation", func(_ *explainer, held heldElements) {
			for _, endpoint := range []string{"10.1.0.2", "10.1.0.9"} {
				vip := dataplane.VIP{Addr: netip.MustParseAddr(endpoint), Protocol: dataplane.TCP, Port: 8080}
				held.add(element{set: noEndpointMap, key: vipKey(vip), verdict: gotoVerdict(rejectChain)})
			}
		}, Rejected, "no endpoints"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e, held := newExplainer(t)
			test.change(e, held)
			out := explained(t, e)
			if out.Verdict != test.verdict || !strings.Contains(out.Reason, test.reason) || len(out.Targets) != 0 {
				t.Errorf("%s to %s: %s (%s), endpoints %v, want %s (%s)",
					e.question.Client, frontend, out.Verdict, out.Reason, out.Targets, test.verdict, test.reason)
			}
			text, err := json.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "null") {
				t.Errorf("JSON has null for a list: %s", text)
			}
		})
	}
}

func TestExplainOneLostEndpoint(t *testing.T) {
	t.Parallel()
	e, held := newExplainer(t)
	vip := dataplane.VIP{Addr: netip.MustParseAddr("10.1.0.9"), Protocol: dataplane.TCP, Port: 8080}
	held.add(element{set: noEndpointMap, key: vipKey(vip), verdict: dropVerdict})
	out := explained(t, e)
	if out.Verdict != Translated || len(out.Targets) != 1 || out.Targets[0].Buckets != 2 {
		t.Errorf("%s, endpoints %+v, want translated to the endpoint that is not dropped", out.Verdict, out.Targets)
	}
}

func TestExplainPins(t *testing.T) {
	t.Parallel()
	e, held := newExplainer(t)
	pins := affinityMap(dataplane.TCP)
	e.rules["nat-prerouting"] = append([][]expression{{
		field32(t, first, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4),
		field32(t, second, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
		field32(t, third, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2),
		expr("lookup", map[uint16]uint32{unix.NFTA_LOOKUP_SREG: first, unix.NFTA_LOOKUP_DREG: first}).with(unix.NFTA_LOOKUP_SET, pins+"\x00"),
		expr("nat", map[uint16]uint32{
			unix.NFTA_NAT_TYPE: unix.NFT_NAT_DNAT, unix.NFTA_NAT_REG_ADDR_MIN: first, unix.NFTA_NAT_REG_PROTO_MIN: second,
		}),
	}}, e.rules["nat-prerouting"]...)
	key := appendPort(appendAddr(appendAddr(nil, e.question.Client), e.question.To.Addr), e.question.To.Port)
	held.add(element{set: pins, key: string(key), data: endpointData(netip.MustParseAddrPort("10.1.0.9:8080")), timeout: 90 * time.Second})
	out := explained(t, e)
	if len(out.Targets) != 1 || out.Targets[0].Endpoint.String() != "10.1.0.9:8080" || out.Targets[0].Buckets != 0 {
		t.Errorf("endpoints %+v, want the pin alone", out.Targets)
	}
	if got := out.Steps[0].Detail; got != "the client is pinned for another 1m30s" {
		t.Errorf("detail %q", got)
	}
	e.question.Client = netip.MustParseAddr("10.1.0.8")
	if out := explained(t, e); len(out.Targets) != 2 {
		t.Errorf("endpoints of another client %+v, want all", out.Targets)
	}
}

func TestExplainRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	jump := func(chain string) expression {
		code := int32(unix.NFT_JUMP)
		verdict := nested(t, unix.NFTA_VERDICT_CODE, binary.BigEndian.AppendUint32(nil, uint32(code))) +
			nested(t, unix.NFTA_VERDICT_CHAIN, []byte(chain+"\x00"))
		return expr("immediate", map[uint16]uint32{unix.NFTA_IMMEDIATE_DREG: unix.NFT_REG_VERDICT}).
			with(unix.NFTA_IMMEDIATE_DATA, nested(t, unix.NFTA_DATA_VERDICT, []byte(verdict)))
	}
	for _, test := range []struct {
		name string
		rule []expression
		want string
	}{
		{"an expression", []expression{expr("quota", nil)}, "quota"},
		{"a register", []expression{field32(t, 99, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4)}, "register 99"},
		{"too much for a register", []expression{field32(t, unix.NFT_REG32_15, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 8)}, "8 bytes"},
		{"a modulus", []expression{randomDraw(0)}, "modulus 0"},
		{"a chain that jumps to itself", []expression{jump("nat-prerouting")}, "chains deep"},
	} {
		e, _ := newExplainer(t)
		e.rules["nat-prerouting"] = [][]expression{test.rule}
		_, err := e.explain(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "nat-prerouting") {
			t.Errorf("%s: error %v, want %q and the chain", test.name, err, test.want)
		}
	}
}

func TestExplainEndsWhenTold(t *testing.T) {
	t.Parallel()
	e, _ := newExplainer(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := e.explain(ctx); !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
}

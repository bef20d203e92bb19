// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
)

// wordObjects are what frontends for clients outside, session affinity and source
// ranges need beside objects.
const wordObjects = objects + `
	map ports { typeof meta l4proto . th dport : verdict ; }
	map nodeport-rows { typeof tcp dport . numgen random mod 65536 : ip daddr . tcp dport ; }
	map pins { typeof ip saddr . ip daddr . tcp dport : ip daddr . tcp dport ; flags dynamic,timeout ; size 2 ; }
	map id-pins { typeof ip saddr . numgen inc mod 65536 : ip daddr . tcp dport ; flags dynamic,timeout ; size 9 ; }
	set learned { typeof ip daddr ; flags dynamic,timeout ; size 9 ; }
	set ranges { typeof ip daddr . meta l4proto . th dport . ip saddr ; flags interval ; }
	chain first { type filter hook prerouting priority -110 ; }
	chain sent { type filter hook output priority 0 ; }
	chain pins-post { type nat hook postrouting priority 90 ; }
	chain pins-in { type nat hook input priority 90 ; }
	element rows { 10.0.0.1 . 80 . 65536 : 10.1.0.9 . 8080 }
	element rows { 10.0.0.7 . 80 . 0 : 192.168.0.2 . 8080 }
	element nodeport-rows { 30080 . 0 : 10.1.0.1 . 8080 }
	element ports { tcp . 80 : return }
	element ports { tcp . 81 : accept }
	element ports { tcp . 82 : drop }
	element pins { 10.2.0.2 . 10.0.0.1 . 80 : 10.1.0.2 . 8080 }
	element id-pins { 10.2.0.1 . 65543 : 10.1.0.3 . 8080 }
	element ranges { 10.0.0.1 . tcp . 80 . 10.2.0.0-10.2.0.3 }
	element ranges { 10.0.0.1 . tcp . 80 . 10.3.0.0/16 }
	element ranges { 10.0.0.1 . tcp . 80 . 10.4.0.1 }
`

// packetOf reads "source@interface", or the source alone for a packet of the node,
// and "address:port".
func packetOf(from, to string) Packet {
	source, in, _ := strings.Cut(from, "@")
	return Packet{Source: netip.MustParseAddr(source), In: in, Protocol: dataplane.TCP, Dest: netip.MustParseAddrPort(to)}
}

func wordTracer(t *testing.T, rules ...string) *Tracer {
	t.Helper()
	text := wordObjects
	for _, rule := range rules {
		text += "rule " + rule + "\n"
	}
	tracer, err := NewTracer(tableOf(t, text), netip.MustParseAddr("192.168.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

func TestTraceWords(t *testing.T) {
	const (
		pod, outside, node = "10.2.0.1@veth1", "10.9.0.1@eth0", "192.168.0.2"
		vip, nodePort      = "10.0.0.1:80", "192.168.0.2:30080"
		dnat               = "pre dnat ip addr . port to ip daddr . tcp dport . "
		vmapPorts          = "fwd meta l4proto . th dport vmap @ports"
		isInRanges         = "ip daddr . meta l4proto . th dport . ip saddr @ranges drop"
		isNotInRanges      = "ip daddr . meta l4proto . th dport . ip saddr != @ranges drop"
	)
	cases := []struct {
		name, from, to string
		rules          []string
		want           string
	}{
		{"accept ends the base chain", pod, vip, []string{"fwd jump a", "fwd drop", "a accept"}, "none"},
		{"accept does not end the hook", pod, vip, []string{"early accept", "fwd drop"}, "drop"},
		{"return comes back to the jump", pod, vip, []string{"fwd jump a", "fwd drop", "a return", "a reject"}, "drop"},
		{"return in a base chain", pod, vip, []string{"fwd return", "fwd drop"}, "none"},
		{"element return", pod, vip, []string{vmapPorts, "fwd drop"}, "none"},
		{"element accept", pod, "10.0.0.1:81", []string{"fwd jump a", "fwd drop", "a meta l4proto . th dport vmap @ports"}, "none"},
		{"element drop", pod, "10.0.0.1:82", []string{vmapPorts}, "drop"},
		{"source on the node", node, vip, []string{"post fib saddr type local masquerade fully-random"}, "none masquerade"},
		{"source elsewhere", pod, vip, []string{"post fib saddr type local masquerade fully-random"}, "none"},
		{"destination on the node", pod, nodePort, []string{"in fib daddr type local drop"}, "drop"},
		{"loopback is on the node", "127.0.0.1", "127.0.0.1:30080", []string{"sent fib daddr type local drop"}, "drop"},
		{"destination elsewhere", pod, vip, []string{"first fib daddr type local drop"}, "none"},
		{"destination after translation", pod, nodePort, []string{"pre dnat ip addr . port to tcp dport . numgen random mod 1 map @nodeport-rows", "fwd fib daddr type local drop"}, "10.1.0.1:8080"},
		{"not in a range of addresses", pod, nodePort, []string{"in ip daddr != 127.0.0.0/8 drop"}, "drop"},
		{"a single address", pod, vip, []string{"fwd ip daddr 10.0.0.1 drop"}, "drop"},
		{"another protocol", pod, vip, []string{"fwd meta l4proto != tcp drop"}, "none"},
		{"offset of a draw", pod, vip, []string{dnat + "numgen random mod 1 offset 65536 map @rows"}, "10.1.0.9:8080"},
		{"a hash is a draw", pod, vip, []string{dnat + "jhash ip saddr mod 2 seed 0x1 map @rows"}, "10.1.0.1:8080, 10.1.0.2:8080"},
		{"offset of a hash", pod, vip, []string{dnat + "jhash ip saddr mod 1 seed 0x1 offset 65536 map @rows"}, "10.1.0.9:8080"},
		{"offset in a mark", pod, vip, []string{"pre ct mark set numgen random mod 1 offset 2 dnat ip addr . port to ip daddr . ct mark map @marked"}, "10.1.0.3:8080"},
		{"a constant", pod, vip, []string{"pre dnat ip addr . port to ip saddr . numgen inc mod 1 offset 65543 map @id-pins"}, "10.1.0.3:8080"},
		{"a pin", "10.2.0.2@veth1", vip, []string{"pre dnat ip addr . port to ip saddr . ip daddr . tcp dport map @pins"}, "10.1.0.2:8080"},
		{"no pin", pod, vip, []string{"pre dnat ip addr . port to ip saddr . ip daddr . tcp dport map @pins"}, "none"},
		{"first of a range", "10.2.0.0@eth0", vip, []string{"first " + isInRanges}, "drop"},
		{"last of a range", "10.2.0.3@eth0", vip, []string{"first " + isInRanges}, "drop"},
		{"behind a range", "10.2.0.4@eth0", vip, []string{"first " + isInRanges}, "none"},
		{"in a prefix", "10.3.255.255@eth0", vip, []string{"first " + isInRanges}, "drop"},
		{"behind a prefix", "10.4.0.0@eth0", vip, []string{"first " + isInRanges}, "none"},
		{"an address of its own", "10.4.0.1@eth0", vip, []string{"first " + isInRanges}, "drop"},
		{"in no range", outside, vip, []string{"first " + isNotInRanges}, "drop"},
		{"not in no range", pod, vip, []string{"first " + isNotInRanges}, "none"},
		{"ranges of another port", pod, "10.0.0.1:81", []string{"first " + isNotInRanges}, "drop"},
		{"original destination", pod, vip, []string{dnat + "numgen random mod 1 map @rows", "post meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst vmap @verdicts", "a masquerade fully-random"}, "10.1.0.1:8080 masquerade"},
		{"original port", pod, nodePort, []string{"pre dnat ip addr . port to tcp dport . numgen random mod 1 map @nodeport-rows", "post meta l4proto . ct original proto-dst vmap @ports", "post masquerade fully-random"}, "10.1.0.1:8080 masquerade"},
		{"before translation", pod, vip, []string{dnat + "numgen random mod 1 map @rows", "first drop"}, "drop"},
		{"translated to the node", outside, "10.0.0.7:80", []string{dnat + "numgen random mod 1 map @rows", "fwd drop", "in reject"}, "reject"},
		{"the node to itself, out", node, nodePort, []string{"sent drop"}, "drop"},
		{"the node to itself, in", node, nodePort, []string{"in reject"}, "reject"},
		{"the node to itself, filters on the way in", node, nodePort, []string{`first iifname "lo" drop`}, "drop"},
		{"the node to itself, translated once", node, "192.168.0.2:80", []string{"pre counter", "pins-in counter"}, "none"},
		{"the node elsewhere", node, vip, []string{"in drop", "first drop"}, "none"},
		{"pins come before masquerading", pod, vip, []string{"pins-post counter", "post masquerade fully-random"}, "none masquerade counted"},
		{"an element that the packet has written", pod, vip, []string{"first update @learned { ip daddr timeout 1h }", "post ct original ip daddr @learned masquerade fully-random"}, "none masquerade"},
		{"an element of another packet", pod, vip, []string{"post ct original ip daddr @learned masquerade fully-random"}, "none"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			outcomes, err := wordTracer(t, tc.rules...).Trace(packetOf(tc.from, tc.to))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range outcomes {
				got = append(got, o.String())
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConnect(t *testing.T) {
	const (
		pin    = "pins-post meta l4proto tcp update @pins { ct original ip saddr . ct original ip daddr . ct original proto-dst timeout 90s : ct reply ip saddr . ct reply proto-src } return"
		idPin  = "pins-post meta l4proto tcp update @id-pins { ct original ip saddr . numgen inc mod 1 offset 65543 timeout 3h : ct reply ip saddr . ct reply proto-src } return"
		draw   = "pre dnat ip addr . port to ip daddr . tcp dport . numgen random mod 2 map @rows"
		counts = "pins-post counter"
	)
	second := func(n int) int { return n - 1 }
	cases := []struct {
		name, from string
		rules      []string
		want       string
		learned    []Learned
	}{
		{"nothing to write", "10.2.0.1@veth1", []string{draw}, "10.1.0.2:8080", nil},
		{"a pin", "10.2.0.1@veth1", []string{draw, pin, counts}, "10.1.0.2:8080", []Learned{
			{Set: "pins", Key: "10.2.0.1 . 10.0.0.1 . 80", Value: "10.1.0.2 . 8080", Timeout: 90 * time.Second},
		}},
		{"a pin by id, which keeps its endpoint", "10.2.0.1@veth1", []string{draw, idPin, counts}, "10.1.0.2:8080", []Learned{
			{Set: "id-pins", Key: "10.2.0.1 . 65543", Value: "10.1.0.3 . 8080", Timeout: 3 * time.Hour},
		}},
		{"an address", "10.2.0.1@veth1", []string{"first update @learned { ip daddr timeout 1h }"}, "none", []Learned{
			{Set: "learned", Key: "10.0.0.1", Timeout: time.Hour},
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			outcome, learned, err := wordTracer(t, tc.rules...).Connect(packetOf(tc.from, "10.0.0.1:80"), second)
			if err != nil {
				t.Fatal(err)
			}
			if got := outcome.String(); got != tc.want {
				t.Errorf("outcome %s, want %s", got, tc.want)
			}
			if diff := cmp.Diff(tc.learned, learned); diff != "" {
				t.Errorf("learned (-want +got):\n%s", diff)
			}
		})
	}
}

// A map without room serves its clients: the rule ends, and the next one counts.
func TestFullMap(t *testing.T) {
	const pin = "update @pins { ip saddr . ip daddr . tcp dport timeout 90s : ct reply ip saddr . ct reply proto-src } return"
	tracer := wordTracer(t, "pins-post "+pin, "pins-post counter")
	table := tableOf(t, wordObjects+"rule pins-post "+pin+"\nrule pins-post counter\nelement pins { 10.2.0.3 . 10.0.0.1 . 80 : 10.1.0.2 . 8080 }\n")
	full, err := NewTracer(table)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		tracer  *Tracer
		from    string
		counted bool
		learned int
	}{
		{"room", tracer, "10.2.0.1@veth1", false, 1},
		{"no room", full, "10.2.0.1@veth1", true, 0},
		{"no room, but there already", full, "10.2.0.2@veth1", false, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			outcome, learned, err := tc.tracer.Connect(packetOf(tc.from, "10.0.0.1:80"), func(int) int { return 0 })
			if err != nil {
				t.Fatal(err)
			}
			if outcome.Counted != tc.counted || len(learned) != tc.learned {
				t.Errorf("counted %t, %d elements written, want %t and %d", outcome.Counted, len(learned), tc.counted, tc.learned)
			}
		})
	}
}

// The same client gets the same bucket, whatever is drawn, and clients spread.
func TestConnectByHash(t *testing.T) {
	tracer := wordTracer(t, "pre dnat ip addr . port to ip daddr . tcp dport . jhash ip saddr mod 2 seed 0x1 map @rows")
	seen := make(map[netip.AddrPort]int)
	source := netip.MustParseAddr("10.2.0.1")
	for range 32 {
		p := packetOf(source.String()+"@veth1", "10.0.0.1:80")
		var endpoints [2]netip.AddrPort
		for i := range endpoints {
			outcome, _, err := tracer.Connect(p, func(int) int { return i })
			if err != nil {
				t.Fatal(err)
			}
			endpoints[i] = outcome.Endpoint
		}
		if endpoints[0] != endpoints[1] {
			t.Errorf("%s was at %s and is at %s", source, endpoints[0], endpoints[1])
		}
		seen[endpoints[0]]++
		source = source.Next()
	}
	if len(seen) != 2 {
		t.Errorf("clients by endpoint: %v, want both endpoints", seen)
	}
}

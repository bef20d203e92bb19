// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// tableOf builds a table of the family ip from the dump format of knftables,
// without "add", family and table. Rules are "rule", the chain and the text; no
// chain or set that they name has to exist.
func tableOf(t *testing.T, text string) *knftables.FakeTable {
	t.Helper()
	fake := knftables.NewFake(knftables.IPv4Family, "test")
	var dump strings.Builder
	dump.WriteString("add table ip test\n")
	var rules []*knftables.Rule
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "":
		case "rule":
			chain, rule, _ := strings.Cut(rest, " ")
			rules = append(rules, &knftables.Rule{Chain: chain, Rule: rule})
		default:
			fmt.Fprintf(&dump, "add %s ip test %s\n", kind, rest)
		}
	}
	if err := fake.ParseDump(dump.String()); err != nil {
		t.Fatalf("parse:\n%s\n%v", dump.String(), err)
	}
	for _, rule := range rules {
		chain := fake.Table.Chains[rule.Chain]
		chain.Rules = append(chain.Rules, rule)
	}
	fake.Table.Family = knftables.IPv4Family
	return fake.Table
}

const objects = `
	map verdicts { typeof ip daddr . meta l4proto . th dport : verdict ; }
	map rows { typeof ip daddr . th dport . numgen random mod 65536 : ip daddr . th dport ; }
	map marked { typeof ip daddr . ct mark : ip daddr . th dport ; }
	set addresses { typeof ip daddr ; }
	chain pre { type nat hook prerouting priority -100 ; }
	chain out { type nat hook output priority -100 ; }
	chain in { type filter hook input priority 0 ; }
	chain fwd { type filter hook forward priority 0 ; }
	chain early { type filter hook forward priority -10 ; }
	chain post { type nat hook postrouting priority 100 ; }
	chain a
	chain b
	element rows { 10.0.0.1 . 80 . 0 : 10.1.0.1 . 8080 }
	element rows { 10.0.0.1 . 80 . 1 : 10.1.0.2 . 8080 }
	element marked { 10.0.0.1 . 0 : 10.1.0.1 . 8080 }
	element marked { 10.0.0.1 . 2 : 10.1.0.3 . 8080 }
	element addresses { 10.0.0.1 }
	element verdicts { 10.0.0.1 . tcp . 80 : goto a }
	element verdicts { 10.0.0.2 . tcp . 80 : drop }
	element verdicts { 10.0.0.3 . tcp . 80 : jump a }
`

func TestTrace(t *testing.T) {
	web := Packet{Source: netip.MustParseAddr("10.2.0.1"), In: "veth1", Protocol: dataplane.TCP, Dest: netip.MustParseAddrPort("10.0.0.1:80")}
	to := func(dest string) Packet {
		p := web
		p.Dest = netip.MustParseAddrPort(dest)
		return p
	}
	fromNode, toNode, udp := web, web, web
	fromNode.In, toNode.ToNode, udp.Protocol = "", true, dataplane.UDP
	const numgen = "dnat ip addr . port to ip daddr . th dport . numgen random mod "
	cases := []struct {
		name   string
		packet Packet
		rules  []string
		want   []string
	}{
		{"no rules", web, nil, []string{"none"}},
		{"drop", web, []string{"fwd drop"}, []string{"drop"}},
		{"reject", web, []string{"fwd reject"}, []string{"reject"}},
		{"forward is not for the node's packets", fromNode, []string{"fwd drop", "pre drop"}, []string{"none"}},
		{"output is", fromNode, []string{"out drop"}, []string{"drop"}},
		{"input instead of forward", toNode, []string{"in drop", "post masquerade fully-random", "fwd reject"}, []string{"drop"}},
		{"translated packets leave the node", toNode, []string{"pre " + numgen + "1 map @rows", "in drop"}, []string{"10.1.0.1:8080"}},
		{"lower priorities first", web, []string{"fwd drop", "early reject"}, []string{"reject"}},
		{"all buckets", web, []string{"pre " + numgen + "2 map @rows"}, []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"a bucket without row", web, []string{"pre " + numgen + "3 map @rows"}, []string{"none", "10.1.0.1:8080", "10.1.0.2:8080"}},
		{"a second draw", web, []string{"pre " + numgen + "3 map @rows", "pre counter " + numgen + "2 map @rows"}, []string{"10.1.0.1:8080", "10.1.0.1:8080 counted", "10.1.0.2:8080", "10.1.0.2:8080 counted"}},
		{"mark", web, []string{"pre ct mark set numgen random mod 3 dnat ip addr . port to ip daddr . ct mark map @marked"}, []string{"none", "10.1.0.1:8080", "10.1.0.3:8080"}},
		{"rules after dnat", web, []string{"pre " + numgen + "1 map @rows", "pre drop"}, []string{"10.1.0.1:8080"}},
		{"protocol in the key", udp, []string{"fwd ip daddr . tcp dport . numgen random mod 1 @rows drop"}, []string{"none"}},
		{"protocol", udp, []string{"fwd meta l4proto tcp drop"}, []string{"none"}},
		{"goto ends the chain", web, []string{"fwd goto a", "fwd drop"}, []string{"none"}},
		{"jump comes back", web, []string{"fwd jump a", "fwd drop"}, []string{"drop"}},
		{"goto comes back to the jump before it", web, []string{"fwd jump a", "fwd drop", "a goto b", "a reject"}, []string{"drop"}},
		{"verdict map", web, []string{"fwd ip daddr . meta l4proto . th dport vmap @verdicts", "fwd drop", "a reject"}, []string{"reject"}},
		{"verdict map, goto ends the chain", web, []string{"fwd ip daddr . meta l4proto . th dport vmap @verdicts", "fwd drop"}, []string{"none"}},
		{"verdict map, jump comes back", to("10.0.0.3:80"), []string{"fwd ip daddr . meta l4proto . th dport vmap @verdicts", "fwd drop"}, []string{"drop"}},
		{"verdict map, drop", to("10.0.0.2:80"), []string{"fwd ip daddr . meta l4proto . th dport vmap @verdicts"}, []string{"drop"}},
		{"verdict map, nothing found", to("10.0.0.4:80"), []string{"fwd ip daddr . meta l4proto . th dport vmap @verdicts"}, []string{"none"}},
		{"set", web, []string{"fwd ip daddr @addresses drop"}, []string{"drop"}},
		{"not in the set", web, []string{"fwd ip daddr != @addresses drop"}, []string{"none"}},
		{"range", web, []string{"fwd ip saddr 10.2.0.0/16 drop"}, []string{"drop"}},
		{"out of the range", web, []string{"fwd ip saddr != 10.2.0.0/16 drop"}, []string{"none"}},
		{"interface", web, []string{`fwd iifname != "veth1" drop`}, []string{"none"}},
		{"interface prefix", web, []string{`fwd iifname "veth*" drop`}, []string{"drop"}},
		{"no interface", fromNode, []string{`post iifname != "veth*" masquerade fully-random`}, []string{"none masquerade"}},
		{"original destination", web, []string{"pre " + numgen + "1 map @rows", "post ct status dnat jump a", "a ct original ip daddr @addresses masquerade fully-random"}, []string{"10.1.0.1:8080 masquerade"}},
		{"not translated", web, []string{"post ct status dnat masquerade fully-random"}, []string{"none"}},
		{"new connections", web, []string{"fwd ct state new drop"}, []string{"drop"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			text := objects
			for _, rule := range tc.rules {
				text += "rule " + rule + "\n"
			}
			tracer, err := NewTracer(tableOf(t, text))
			if err != nil {
				t.Fatal(err)
			}
			outcomes, err := tracer.Trace(tc.packet)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range outcomes {
				got = append(got, o.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

// What the tracer does not know, it does not read past.
func TestUnknownRules(t *testing.T) {
	for _, rule := range []string{"log", "masquerade", "masquerade random", "notrack",
		"tcp sport 80 drop", "ip6 saddr fd00::/8 drop", "ip saddr fd00::/8 drop",
		"ip saddr { 10.0.0.0/8 } drop", "meta l4proto icmp drop", "meta l4proto . th dport drop", "meta mark 1 drop",
		"ct state established drop", "ct status snat drop", "ct mark 1 drop", "ct mark set",
		"iifname veth1 drop", `iifname "" drop`, `oifname "veth1" drop`,
		"dnat to 10.0.0.1", "dnat ip addr . port to ip daddr", "dnat ip addr . port to ip daddr @rows", "dnat ip addr . port to ip daddr map",
		"dnat ip6 addr . port to ip6 daddr map @rows", "ip daddr . numgen random mod 0 @rows drop", "ip daddr . numgen random mod x @rows drop",
		"ip daddr . numgen inc mod 2 @rows drop", "ip daddr . jhash ip saddr mod 0 seed 1 @rows drop",
		"ip daddr . jhash ip daddr mod 2 @rows drop", "ip daddr . numgen random mod 2 seed 1 @rows drop", "ip daddr . numgen random mod 2 offset x @rows drop",
		"fib daddr type broadcast drop", "fib iif type local drop", "ct reply ip daddr @addresses drop", "update @nowhere { ip daddr }",
		"update @addresses ip daddr", "update @addresses { ip daddr timeout soon }", "update @addresses { ip daddr : }", "update @addresses { ip daddr",
		"ip daddr .", "ip daddr", "ip daddr !=", "ip daddr vmap addresses", "drop drop drop x", "jump",
		"", "goto nowhere", "ip daddr @nowhere drop", "ip daddr vmap @nowhere",
	} {
		_, err := NewTracer(tableOf(t, objects+"rule fwd "+rule))
		if err == nil || !strings.Contains(err.Error(), "chain fwd") {
			t.Errorf("rule %q: %v, want an error that names the chain", rule, err)
		}
	}
}

func TestTraceErrors(t *testing.T) {
	web := Packet{Source: netip.MustParseAddr("10.2.0.1"), In: "veth1", Protocol: dataplane.TCP, Dest: netip.MustParseAddrPort("10.0.0.1:80")}
	cases := map[string]string{
		"chains in a circle": objects + "rule fwd jump a\nrule a jump b\nrule b jump a\n",
		"unknown verdict":    objects + "element verdicts { 10.0.0.1 . udp . 80 : queue }\nrule fwd ip daddr . meta l4proto . th dport vmap @verdicts\n",
		"no endpoint":        objects + "element addresses { 10.0.0.9 }\nelement rows { 10.0.0.1 . 81 . 0 : 10.1.0.1 . http }\nrule pre dnat ip addr . port to ip daddr . th dport . numgen random mod 1 map @rows\n",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			tracer, err := NewTracer(tableOf(t, text))
			if err != nil {
				t.Fatal(err)
			}
			p := web
			switch name {
			case "unknown verdict":
				p.Protocol = dataplane.UDP
			case "no endpoint":
				p.Dest = netip.MustParseAddrPort("10.0.0.1:81")
			}
			if outcomes, err := tracer.Trace(p); err == nil {
				t.Errorf("outcomes %v, want an error", outcomes)
			}
		})
	}
	tracer, err := NewTracer(tableOf(t, objects))
	if err != nil {
		t.Fatal(err)
	}
	web.Dest = netip.MustParseAddrPort("[fd00::1]:80")
	if _, err := tracer.Trace(web); err == nil {
		t.Error("a packet of another family was traced")
	}
	if _, err := NewTracer(&knftables.FakeTable{}); err == nil {
		t.Error("a table without family was read")
	}
}

func TestDump(t *testing.T) {
	const declarations = `
		map service-ips { typeof ip daddr . meta l4proto . th dport : verdict ; }
		map endpoints-tcp { typeof ip daddr . tcp dport . numgen random mod 65536 : ip daddr . tcp dport ; }
		map endpoints { type ipv4_addr . inet_proto . inet_service . mark : ipv4_addr . inet_service ; }
		set cluster-ips { typeof ip daddr ; }
		chain cluster-2
		chain cluster-3
		chain cluster-ips-check
		rule cluster-ips-check ip daddr @cluster-ips reject
	`
	elements := []string{
		"element service-ips { 10.0.0.1 . tcp . 80 : goto cluster-2 }",
		"element endpoints-tcp { 10.0.0.1 . 80 . 0 : 10.1.0.1 . 8080 }",
		"element endpoints-tcp { 10.0.0.1 . 80 . 1 : 10.1.0.2 . 8080 }",
		"element endpoints { 10.0.0.1 . tcp . 80 . 1 : 10.1.0.2 . 8080 }",
		"element cluster-ips { 10.0.0.2 }",
		"element cluster-ips { 10.0.0.1 }",
	}
	want := Dump(tableOf(t, declarations+strings.Join(elements, "\n")))
	for _, part := range []string{"chain cluster-2\n", "chain cluster-ips-check\n\tip daddr @cluster-ips reject\n", "\t10.0.0.1 . tcp . 80 : 10.1.0.1 . 8080\n"} {
		if !strings.Contains(want, part) {
			t.Errorf("dump without %q:\n%s", part, want)
		}
	}
	if strings.Contains(want, "cluster-3") || strings.Contains(want, "surplus") {
		t.Errorf("dump with a chain that is not used, or a surplus row:\n%s", want)
	}
	slices.Reverse(elements)
	elements[4], elements[3] = strings.Replace(elements[4], "80 . 0", "80 . 1", 1), strings.Replace(elements[3], "80 . 1", "80 . 0", 1)
	if diff := cmp.Diff(want, Dump(tableOf(t, declarations+strings.Join(elements, "\n")))); diff != "" {
		t.Errorf("another order (-want +got):\n%s", diff)
	}
	for _, extra := range []string{
		"element endpoints-tcp { 10.0.0.1 . 80 . 2 : 10.1.0.3 . 8080 }",
		"element endpoints-tcp { 10.0.0.1 . 81 . 0 : 10.1.0.3 . 8080 }",
	} {
		if got := Dump(tableOf(t, declarations+strings.Join(append(elements, extra), "\n"))); strings.Count(got, "surplus, bucket ") != 1 {
			t.Errorf("%s is not marked as surplus:\n%s", extra, got)
		}
	}
	if got := Dump(nil); got != "" {
		t.Errorf("dump of no table: %q", got)
	}
}

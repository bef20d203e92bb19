// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane/host"
	"github.com/veridict/veridict/dataplane/nftables"
)

func TestParseQuestion(t *testing.T) {
	t.Parallel()
	tests := []struct {
		client, to string
		// want is "client vip", or part of the error behind "error: ".
		want string
	}{
		{"10.0.0.1", "10.96.0.1:80", "10.0.0.1 10.96.0.1:80/tcp"},
		{"10.0.0.1", "10.96.0.1:53/UDP", "10.0.0.1 10.96.0.1:53/udp"},
		{"fd00::1", "[fd00::2]:80/sctp", "fd00::1 [fd00::2]:80/sctp"},
		{"[fd00::1]", "[fd00::2]:80", "fd00::1 [fd00::2]:80/tcp"},
		{"10.0.0.01", "010.96.0.1:80", "10.0.0.1 10.96.0.1:80/tcp"},
		{"x", "10.96.0.1:80", `error: client: "x" is not an IP address`},
		{"10.0.0.1", "10.96.0.1", `error: "10.96.0.1" is not ADDRESS:PORT`},
		{"fd00::1", "fd00::2:80", "error: an IPv6 address stands in brackets"},
		{"10.0.0.1", "10.96.0.1:0", `error: "0" is not a port`},
		{"10.0.0.1", "10.96.0.1:65536", `error: "65536" is not a port`},
		{"10.0.0.1", "10.96.0.1:http", `error: "http" is not a port`},
		{"10.0.0.1", "10.96.0.1:80/icmp", `error: "icmp" is not tcp, udp or sctp`},
		{"10.0.0.1", "web:80", `error: "web" is not an IP address`},
		{"10.0.0.1", "[fd00::2]:80", "error: not of the same IP family"},
	}
	for _, test := range tests {
		q, err := parseQuestion(test.client, test.to)
		part, failing := strings.CutPrefix(test.want, "error: ")
		switch {
		case failing && (err == nil || !strings.Contains(err.Error(), part)):
			t.Errorf("%s %s: error %v, want %q", test.client, test.to, err, part)
		case !failing && err != nil:
			t.Errorf("%s %s: %v", test.client, test.to, err)
		case !failing && q.Client.String()+" "+q.To.String() != test.want:
			t.Errorf("%s %s: %s %s, want %s", test.client, test.to, q.Client, q.To, test.want)
		}
	}
}

func FuzzParseQuestion(f *testing.F) {
	f.Add("10.0.0.1", "10.96.0.1:53/udp")
	f.Add("[fd00::1]", "[fd00::2]:80")
	f.Add("10.0.0.1", "[:80")
	f.Add("", ":/")
	f.Fuzz(func(t *testing.T, client, to string) {
		q, err := parseQuestion(client, to)
		if err != nil {
			return
		}
		again, err := parseQuestion(q.Client.String(), q.To.String())
		if err != nil || again != q {
			t.Errorf("%q %q is read as %v, and that as %v (%v)", client, to, q, again, err)
		}
	})
}

func TestEntrance(t *testing.T) {
	t.Parallel()
	failed := errors.New("netlink failed")
	tests := []struct {
		name, given string
		route       host.Route
		err         error
		// want is the interface, or part of the error behind "error: ".
		want string
	}{
		{name: "the route says", route: host.Route{Interface: "veth1"}, want: "veth1"},
		{name: "the node itself", route: host.Route{Local: true, Interface: "lo"}, want: ""},
		{name: "no route", want: "error: --in-interface"},
		{name: "given", given: "eth1", route: host.Route{Interface: "veth1"}, want: "eth1"},
		{name: "given, and the routing table is not asked", given: "eth1", err: failed, want: "eth1"},
		{name: "no answer", err: failed, want: "error: netlink failed"},
	}
	for _, test := range tests {
		got, err := entrance(netip.MustParseAddr("192.0.2.1"), test.given, func(netip.Addr) (host.Route, error) { return test.route, test.err })
		part, failing := strings.CutPrefix(test.want, "error: ")
		if failing != (err != nil) || failing && !strings.Contains(err.Error(), part) || !failing && got != test.want {
			t.Errorf("%s: %q, error %v, want %q", test.name, got, err, test.want)
		}
	}
}

func TestExplanationForPeople(t *testing.T) {
	t.Parallel()
	q, err := parseQuestion("10.0.0.1", "10.96.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	q.In = "veth1"
	var out bytes.Buffer
	writeExplanation(&out, q, &explanation{
		Verdict: nftables.Translated, Reason: "10.96.0.1:80/tcp is a frontend of a Service",
		Targets: []nftables.Target{
			{Endpoint: netip.MustParseAddrPort("10.1.0.1:8080"), Probability: 0.75, Buckets: 3, Why: "the client is a pod of this node"},
			{Endpoint: netip.MustParseAddrPort("10.0.0.1:8080"), Probability: 0.25, Buckets: 1, Masquerade: true, Why: "the endpoint is the client itself"},
		},
		Steps: []nftables.Step{
			{Hook: "prerouting", Chain: "services", Action: "lookup", Set: "service-ips", Element: "10.96.0.1 . tcp . 80 : goto cluster-4"},
			{Hook: "prerouting", Chain: "cluster-4", Action: "draw", Detail: "one of 4 buckets at random"},
		},
	})
	want := `10.0.0.1 connects to 10.96.0.1:80/tcp, by veth1: translated
  10.96.0.1:80/tcp is a frontend of a Service

It can come to:
   75.00 %  10.1.0.1:8080                3 of the buckets
   25.00 %  10.0.0.1:8080                1 bucket
masqueraded: the endpoint is the client itself
not masqueraded: the client is a pod of this node

The way of the first packet to the first of them:
  prerouting, chain services
    lookup  @service-ips  10.96.0.1 . tcp . 80 : goto cluster-4
  prerouting, chain cluster-4
    draw  one of 4 buckets at random
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestExplanationOfAMiss(t *testing.T) {
	t.Parallel()
	q, err := parseQuestion("10.0.0.1", "10.96.0.1:81")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	writeExplanation(&out, q, &explanation{
		Verdict: nftables.Rejected, Reason: "the cluster IP has no such port and protocol",
		Steps: []nftables.Step{{Hook: "output", Chain: "cluster-ips-check", Action: "reject"}},
	})
	want := `10.0.0.1 connects to 10.96.0.1:81/tcp, from the node itself: rejected
  the cluster IP has no such port and protocol

The way of the first packet:
  output, chain cluster-ips-check
    reject
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

var update = flag.Bool("update", false, "write what was rendered to testdata")

func TestReportGolden(t *testing.T) {
	good := sampleReport(t)
	bad := sampleReport(t)
	bad.Failed = 112
	bad.Failures = []Failure{{"shop/catalog:http", "no answer in time", 100}, {"shop/names:udp", "refused", 12}}
	bad.Refusals[0].Outcome = "unreachable"
	bad.Services[0] = mustService(t, "catalog", "10.96.0.11", dataplane.TCP, 400, 300, 300)
	bad.Services[0].Counts = Counts{1100, 1001, 999}
	bad.Services[0].Evenness = &observe.Evenness{N: 999, LogE: 9, Rejected: true, PValue: 5e-5, Detectable: 0.1}
	for i := range differencesShown + 2 {
		bad.Differences = append(bad.Differences, Difference{
			fmt.Sprintf("shop/catalog:http 10.244.1.%d:8080", i), Counts{400, 401, 399}, true,
		})
	}
	bad.Alarms = []observe.Alarm{{
		Kind: observe.Uneven,
		Text: "shop/catalog:http (tcp, IPv4) is not spread evenly over its 3 endpoints: see veridict buckets shop/catalog",
	}}
	unobserved := sampleReport(t)
	unobserved.Probes = observe.ProbeStatus{
		Mode:   observe.Off,
		Reason: "load the programs: the kernel is older than 6.4, which has BPF netfilter programs first: operation not supported",
	}
	unobserved.Latencies = nil
	unobserved.ScalingCounts.Selected = 0
	for i := range unobserved.Services {
		unobserved.Services[i].Counts.Selected, unobserved.Services[i].Evenness = 0, nil
	}
	for _, tc := range []struct {
		name   string
		report *Report
		render func(*Report, io.Writer) error
	}{
		{"even.txt", good, (*Report).WriteText},
		{"even.json", good, (*Report).WriteJSON},
		{"broken.txt", bad, (*Report).WriteText},
		{"unobserved.txt", unobserved, (*Report).WriteText},
		{"unobserved.json", unobserved, (*Report).WriteJSON},
		{"empty.txt", &Report{}, (*Report).WriteText},
		{"empty.json", &Report{}, (*Report).WriteJSON},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got bytes.Buffer
			if err := tc.render(tc.report, &got); err != nil {
				t.Fatal(err)
			}
			compareGolden(t, tc.name, got.Bytes())
			for line := range strings.Lines(got.String()) {
				if width := utf8.RuneCountInString(line) - 1; width > 80 && strings.HasSuffix(tc.name, ".txt") {
					t.Errorf("%d columns: %s", width, line)
				}
			}
		})
	}
}

func TestReportErr(t *testing.T) {
	for _, tc := range []struct {
		name   string
		report Report
		want   string
	}{
		{"all is well", Report{Refusals: []Refusal{{Outcome: refused}}}, ""},
		{"failed connections", Report{Failed: 3}, "failed connections: 3"},
		{
			"not refused",
			Report{Refusals: []Refusal{{Service: "shop/returns:http", Outcome: "answered"}}},
			"shop/returns:http has no endpoints, but a connection to it was not refused: answered",
		},
		{
			"counts that differ where the kernel is not observed",
			Report{Differences: []Difference{{"shop/cart:http", Counts{2000, 1999, 0}, false}}},
			"counts that do not agree: 1, first those of shop/cart:http: opened 2,000, answered 1,999",
		},
		{
			"counts that differ",
			Report{Differences: []Difference{{"shop/cart:http", Counts{2000, 2000, 1999}, true}, {}}},
			"counts that do not agree: 2, first those of shop/cart:http: opened 2,000, answered 2,000, selected 1,999",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if err := tc.report.Err(); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got error %q, want %q", got, tc.want)
			}
		})
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for _, tc := range []struct {
		name            string
		value, expected float64
		want            string
	}{
		{"as expected", 100, 100, strings.Repeat("█", barCells)},
		{"half", 50, 100, strings.Repeat("█", barCells/2)},
		{"a sixteenth of a cell is rounded up", 1, 16 * barCells, "▏"},
		{"nothing", 0, 100, ""},
		{"far too many", 1000, 100, strings.Repeat("█", barLimit)},
		{"nothing expected", 5, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := bar(tc.value, tc.expected); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	progress := NewLines(&out)
	progress.Begin("proxy", 1)
	progress.Advance()
	progress.End("15 ServicePorts")
	progress.Note("watch it:\n  veridict top")
	progress.Begin("connections", 2002)
	for range 2002 {
		progress.Advance()
	}
	progress.End("done")
	progress.Close()
	const want = `proxy        15 ServicePorts
watch it:
  veridict top
connections  500 of 2,002
connections  1,000 of 2,002
connections  1,500 of 2,002
connections  done
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// TestBarsEnd interrupts one phase and ends another; without a terminal only
// the line is left.
func TestBarsEnd(t *testing.T) {
	var out bytes.Buffer
	progress := NewBars(&out)
	progress.Begin("network", 3)
	progress.Advance()
	progress.Close()
	progress.Begin("proxy", 1)
	progress.Advance()
	progress.End("15 ServicePorts")
	progress.Close()
	if got, want := out.String(), "proxy        15 ServicePorts\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want %q at its end", got, want)
	}
}

func sampleReport(t *testing.T) *Report {
	t.Helper()
	var histogram observe.Histogram
	for i := range 2000 {
		histogram.Add(time.Duration(1000+i) * time.Nanosecond)
	}
	histogram.Add(1500 * time.Microsecond)
	report := &Report{
		Clients:     3,
		Pods:        51,
		Programmed:  dataplane.Counts{ServicePorts: 5, Endpoints: 9, Elements: 40, Chains: 24, Maps: 22},
		Connections: 5000,
		Elapsed:     4200 * time.Millisecond,
		Services: []ServiceResult{
			mustService(t, "catalog", "10.96.0.11", dataplane.TCP, 350, 320, 330),
			mustService(t, "checkout", "fd00:10:96::13", dataplane.TCP, 1010, 990),
			mustService(t, "inventory", "10.96.0.16", dataplane.TCP, 1000),
			mustService(t, "names", "10.96.0.53", dataplane.UDP, 340, 330, 330),
		},
		Refusals: []Refusal{{
			Service: "shop/returns:http",
			VIP:     dataplane.VIP{Addr: netip.MustParseAddr("10.96.0.20"), Protocol: dataplane.TCP, Port: 80},
			Outcome: refused,
		}},
		Scaled: "shop/catalog:http",
		Scaling: []ScaleStep{
			{From: 3, To: 12, Connections: 2000, Followed: 34567 * time.Microsecond},
			{From: 12, To: 1, Connections: 2400, Followed: 2 * time.Second},
		},
		ScalingCounts: Counts{4400, 4400, 4400},
		Probes:        observe.ProbeStatus{Mode: observe.Netfilter},
		Latencies: []observe.Latency{
			{Family: dataplane.IPv4, Hook: observe.Prerouting, Outcome: observe.Translated, Histogram: histogram},
			{Family: dataplane.IPv6, Hook: observe.Output, Outcome: observe.Translated, Histogram: histogram},
		},
	}
	for i, evenness := range []observe.Evenness{
		{N: 1000, PValue: 0.5, Detectable: 0.123},
		{N: 2000, PValue: 0.65, Detectable: 0.7},
		{Untested: "one endpoint", PValue: 1},
		{N: 10, PValue: 0.9, Detectable: 2},
	} {
		report.Services[i].Evenness = &evenness
	}
	return report
}

// mustService makes a result from counts by the code that the demo uses.
func mustService(t *testing.T, name, vip string, protocol dataplane.Protocol, counts ...int) ServiceResult {
	t.Helper()
	addr := netip.MustParseAddr(vip)
	first := netip.MustParseAddr("10.244.1.1")
	if addr.Is6() {
		first = netip.MustParseAddr("fd00:10:244:1::1")
	}
	port := servicePort{
		namespace: "shop", name: name, portName: "http",
		vip: dataplane.VIP{Addr: addr, Protocol: protocol, Port: 80},
	}
	tally := testbed.Count{Endpoints: map[netip.AddrPort]int{}}
	for _, count := range counts {
		endpoint := netip.AddrPortFrom(first, 8080)
		port.endpoints = append(port.endpoints, endpoint)
		tally.Endpoints[endpoint] = count
		first = first.Next()
	}
	result, err := evaluate(port, tally)
	if err != nil {
		t.Fatal(err)
	}
	result.Counts = Counts{result.Test.N, result.Test.N, result.Test.N}
	for i := range result.Endpoints {
		endpoint := &result.Endpoints[i]
		endpoint.Answered, endpoint.Selected = endpoint.Connections, endpoint.Connections
	}
	return result
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s\nrun with -update if this is meant", path, diff)
	}
}

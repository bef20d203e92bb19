// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fsnotify/fsnotify"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/compare/testbed/testmain"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/deploy"
)

// TestRun lets a trivial proxy serve the whole shop: the kit must find nothing
// wrong with it.
func TestRun(t *testing.T) {
	testmain.NeedRoot(t)
	report := mustRun(t, &ruleProxy{})
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	checkCounts(t, report)
	if got, want := len(report.Services), 14; got != want {
		t.Errorf("got %d ServicePorts with endpoints, want %d", got, want)
	}
	for _, service := range report.Services {
		// A chance of 1 in 10⁹ per Service.
		if service.Test.PValue < 1e-9 {
			t.Errorf("%s: p = %g: %v", service.title(), service.Test.PValue, service.Endpoints)
		}
	}
	var sizes []int
	for _, step := range report.Scaling {
		sizes = append(sizes, step.From, step.To)
	}
	if got, want := fmt.Sprint(sizes), "[5 9 9 3 3 7 7 1 1 5]"; got != want {
		t.Errorf("the scaled Service went through %s endpoints, want %s", got, want)
	}
	if got, want := report.Connections, testConnections; got != want {
		t.Errorf("got %d connections, want %d", got, want)
	}
	checkJSON(t, report)
	checkNothingLeft(t)
}

// TestRunNotices breaks the proxy in ways that must be reported.
func TestRunNotices(t *testing.T) {
	testmain.NeedRoot(t)
	for _, tc := range []struct {
		name  string
		proxy *ruleProxy
		want  string
	}{
		{"a stray endpoint", &ruleProxy{stray: true}, "shop/cart:http: " + errStray.Error()},
		{"a Service that is refused", &ruleProxy{omit: "inventory"}, "shop/inventory:http: refused"},
		{"a Service without endpoints that is not refused", &ruleProxy{noReject: true}, "shop/returns:http: no answer in time"},
		{"a selection that is not counted", &ruleProxy{uncounted: "reviews"}, "shop/reviews:http: opened 100, answered 100, selected 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			report := mustRun(t, tc.proxy)
			if report.Err() == nil {
				t.Error("the report has no error")
			}
			total := 0
			for _, failure := range report.Failures {
				total += failure.Count
			}
			if total != report.Failed {
				t.Errorf("the failures add up to %d, want %d", total, report.Failed)
			}
			var found []string
			for _, failure := range report.Failures {
				found = append(found, failure.Service+": "+failure.Reason)
			}
			for _, refusal := range report.Refusals {
				found = append(found, refusal.Service+": "+refusal.Outcome)
			}
			for _, difference := range report.Differences {
				found = append(found, difference.String())
			}
			if !strings.Contains(strings.Join(found, "\n"), tc.want) {
				t.Errorf("found %q, want %q among them", found, tc.want)
			}
		})
	}
}

func TestRunStopsWhenCancelled(t *testing.T) {
	testmain.NeedRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	options := testOptions(&ruleProxy{})
	options.Progress = &cancelling{Progress: NewLines(io.Discard), phase: "connections", cancel: cancel}
	if _, err := Run(ctx, options); !strings.Contains(fmt.Sprint(err), context.Canceled.Error()) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	checkNothingLeft(t)
}

// testConnections is 100 for each ServicePort.
const testConnections = 14 * 100

func testOptions(proxy *ruleProxy) Options {
	return Options{
		StartProxy:      proxy.start,
		Manifests:       deploy.Examples(),
		Connections:     testConnections,
		StepConnections: 100,
		Progress:        NewLines(io.Discard),
	}
}

func mustRun(t *testing.T, proxy *ruleProxy) *Report {
	t.Helper()
	report, err := Run(t.Context(), testOptions(proxy))
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// checkCounts looks whether the three counts are those of the connections that were
// asked for.
func checkCounts(t *testing.T, report *Report) {
	t.Helper()
	for _, service := range report.Services {
		const each = testConnections / 14
		if got, want := service.Counts, (Counts{each, each, each}); got != want {
			t.Errorf("%s %s: counted %+v, want %+v", service.title(), service.VIP, got, want)
		}
		for _, endpoint := range service.Endpoints {
			n := endpoint.Connections
			if endpoint.Answered != n || endpoint.Selected != n {
				t.Errorf("%s %s: %d connections, but %d answered and %d selected",
					service.title(), endpoint.Addr, n, endpoint.Answered, endpoint.Selected)
			}
		}
	}
	n := report.scalingConnections()
	if got, want := report.ScalingCounts, (Counts{n, n, n}); got != want {
		t.Errorf("counted while scaling: %+v, want %+v", got, want)
	}
	timed := uint64(0)
	for i := range report.Latencies {
		timed += report.Latencies[i].Total()
	}
	if want := uint64(testConnections + n); timed > want || timed < want*9/10 {
		t.Errorf("%d first packets were timed, want nearly all of %d", timed, want)
	}
}

func checkJSON(t *testing.T, report *Report) {
	t.Helper()
	var buffer bytes.Buffer
	if err := report.WriteJSON(&buffer); err != nil {
		t.Fatal(err)
	}
	var parsed jsonReport
	if err := json.Unmarshal(buffer.Bytes(), &parsed); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, service := range parsed.Services {
		for _, endpoint := range service.Endpoints {
			sum += endpoint.Connections
		}
	}
	if sum != parsed.Connections {
		t.Errorf("the endpoints' connections add up to %d, want %d", sum, parsed.Connections)
	}
}

// checkNothingLeft looks for directories of the demo. Namespaces have no names
// that could be looked for.
func checkNothingLeft(t *testing.T) {
	t.Helper()
	left, err := fs.Glob(os.DirFS("/run"), "veridict-demo-*")
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// cancelling cancels in the middle of a phase.
type cancelling struct {
	Progress
	phase  string
	cancel func()
	inside bool
}

func (c *cancelling) Begin(phase string, total int) {
	c.inside = phase == c.phase
	c.Progress.Begin(phase, total)
}

func (c *cancelling) Advance() {
	if c.inside {
		c.cancel()
	}
}

// ruleProxy is a proxy of one rule per ServicePort, rewritten whole whenever
// a manifest changes. It counts by the product's probes.
type ruleProxy struct {
	// stray sends a part of cart's connections elsewhere.
	stray bool
	// omit is a Service that is treated as if it had no endpoints.
	omit string
	// noReject leaves out the rules for Services without endpoints.
	noReject bool
	// uncounted is a Service that the probes are not told of.
	uncounted string

	probes  *probes.Probes
	vips    []dataplane.VIP
	watcher *fsnotify.Watcher
	stopped sync.WaitGroup
	ports   atomic.Int64
}

func (p *ruleProxy) start(ctx context.Context, dir string) (Proxy, error) {
	if err := p.program(ctx, dir); err != nil {
		return nil, err
	}
	if err := p.probe(dir); err != nil {
		return nil, err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(dir); err != nil {
		return nil, err
	}
	p.watcher = watcher
	p.stopped.Go(func() {
		for event := range watcher.Events {
			if event.Has(fsnotify.Create) && strings.HasSuffix(event.Name, ".yaml") {
				// What is not programmed, the demo must notice.
				_ = p.program(ctx, dir)
			}
		}
	})
	return p, nil
}

func (p *ruleProxy) Counts(context.Context) (dataplane.Counts, error) {
	ports := int(p.ports.Load())
	return dataplane.Counts{ServicePorts: ports, Chains: 2, Maps: ports}, nil
}

func (p *ruleProxy) Watch() string { return "" }

func (p *ruleProxy) Close() error {
	err := errors.Join(p.watcher.Close(), p.probes.Close())
	p.stopped.Wait()
	return err
}

// probe has the probes count connections to the VIPs.
func (p *ruleProxy) probe(dir string) error {
	shop, err := loadShop(os.DirFS(dir))
	if err != nil {
		return err
	}
	if p.probes, err = probes.Open(probes.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	frontends := map[probes.Frontend]probes.Affinity{}
	for _, port := range shop.servicePorts {
		if vip := port.vip; port.name != p.uncounted {
			p.vips = append(p.vips, vip)
			frontends[probes.Frontend{
				Addr: vip.Addr, Port: vip.Port, Protocol: uint8(vip.Protocol), Family: uint8(dataplane.FamilyOf(vip.Addr)),
			}] = probes.Affinity{}
		}
	}
	return p.probes.SetFrontends(frontends, nil)
}

// Observed makes of the counters what the demo needs.
func (p *ruleProxy) Observed() *observe.Snapshot {
	snapshot := &observe.Snapshot{Probes: observe.ProbeStatus{Mode: observe.Netfilter}}
	selections, err := p.probes.Selections()
	if err != nil {
		return &observe.Snapshot{ReadError: err.Error()}
	}
	for _, vip := range p.vips {
		service, pool := &observe.Service{VIPs: []dataplane.VIP{vip}}, observe.Pool{}
		for _, s := range selections {
			missed := s.Endpoint == s.VIP
			if s.VIP == netip.AddrPortFrom(vip.Addr, vip.Port) && s.Protocol == uint8(vip.Protocol) && !missed {
				service.Drawn += s.Drawn
				pool.Endpoints = append(pool.Endpoints, observe.Endpoint{Addr: s.Endpoint, Total: s.Drawn})
			}
		}
		service.Pools = []observe.Pool{pool}
		snapshot.Services = append(snapshot.Services, service)
	}
	latencies, err := p.probes.Latencies()
	if err != nil {
		return &observe.Snapshot{ReadError: err.Error()}
	}
	for _, l := range latencies {
		if l.Outcome == probes.Translated {
			snapshot.Latencies = append(snapshot.Latencies, observe.Latency{
				Family: dataplane.Family(l.Family), Outcome: observe.Translated, Histogram: observe.Histogram(l.Histogram),
			})
		}
	}
	return snapshot
}

func (p *ruleProxy) program(ctx context.Context, dir string) error {
	shop, err := loadShop(os.DirFS(dir))
	if err != nil {
		return err
	}
	p.ports.Store(int64(len(shop.servicePorts)))
	nft := exec.CommandContext(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(p.ruleset(shop))
	if output, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, output)
	}
	return nil
}

func (p *ruleProxy) ruleset(shop *shop) string {
	var out strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		fmt.Fprintf(&out, "table %s demo\ndelete table %s demo\ntable %s demo {\n", family, family, family)
		var dispatch, reject strings.Builder
		for _, port := range shop.servicePorts {
			if port.vip.Addr.Is4() != (family == "ip") {
				continue
			}
			match := fmt.Sprintf("%s daddr %s %s dport %d", family, port.vip.Addr, port.vip.Protocol, port.vip.Port)
			if len(port.endpoints) > 0 && port.name != p.omit {
				fmt.Fprintf(&dispatch, "%s dnat %s\n", match, p.choice(port))
			} else if !p.noReject {
				fmt.Fprintf(&reject, "%s reject with tcp reset\n", match)
			}
		}
		fmt.Fprintf(&out, "chain dispatch { type nat hook prerouting priority -100;\n%s}\n", dispatch.String())
		fmt.Fprintf(&out, "chain refuse { type filter hook prerouting priority 0;\n%s}\n}\n", reject.String())
	}
	return out.String()
}

// choice is the address that a random number picks.
func (p *ruleProxy) choice(port servicePort) string {
	endpoints := port.endpoints
	if p.stray && port.name == "cart" {
		endpoints = append([]netip.AddrPort{netip.MustParseAddrPort("10.244.9.3:8080")}, endpoints...)
	}
	family := "ip"
	if port.vip.Addr.Is6() {
		family = "ip6"
	}
	var elements []string
	for i, endpoint := range endpoints {
		elements = append(elements, fmt.Sprintf("%d : %s . %d", i, endpoint.Addr(), endpoint.Port()))
	}
	return fmt.Sprintf("%s addr . port to numgen random mod %d map { %s }", family, len(endpoints), strings.Join(elements, ", "))
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
	"github.com/veridict/veridict/dataplane/nftables/nfttest"
)

// trackedFlows are those that go on with a connection of an earlier step: only
// connection tracking can show what becomes of them.
const trackedFlows = 6

func TestScenarios(t *testing.T) {
	t.Parallel()
	c := loadCorpus(t)
	left := 0
	for i := range c.Scenarios {
		for _, s := range c.Scenarios[i].Steps {
			for _, f := range s.Flows {
				if s.isTracked(&f) {
					left++
				}
			}
		}
	}
	if left != trackedFlows {
		t.Errorf("%d flows are left to flowcheck, want %d", left, trackedFlows)
	}
	for _, layout := range []nftables.Layout{nftables.MarkFree, nftables.CTMark} {
		for i := range c.Scenarios {
			s := &c.Scenarios[i]
			t.Run(fmt.Sprintf("%s/%s", layout, s.ID), func(t *testing.T) {
				t.Parallel()
				r := newRunner(t, layout, nodeOf(&c, s))
				for i := range s.Steps {
					r.step(&s.Steps[i])
				}
			})
			t.Run(fmt.Sprintf("%s each step alone/%s", layout, s.ID), func(t *testing.T) {
				t.Parallel()
				n := nodeOf(&c, s)
				for i := range s.Steps {
					n = n.with(s.Steps[i].NodeChanges)
					if !s.Steps[i].NeedsHistory {
						newRunner(t, layout, n).step(&s.Steps[i])
					}
				}
			})
		}
	}
}

// runner is an agent on a fake kernel.
type runner struct {
	t      *testing.T
	layout nftables.Layout
	node   node
	dir    string
	config config.Config
	time   time.Time

	fake   *nftables.Fake
	syncer *nftables.Syncer
	state  dataplane.State
	// clients are the endpoints that the clients of a flow of this step have got.
	clients map[string]map[netip.Addr]netip.AddrPort
}

func newRunner(t *testing.T, layout nftables.Layout, n node) *runner {
	t.Helper()
	r := &runner{t: t, layout: layout, node: n, dir: t.TempDir(), fake: nftables.NewFake(), time: time.Unix(0, 0)}
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(n.config()), 0o600); err != nil {
		t.Fatal(err)
	}
	set := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := config.AddFlags(set)
	if err := set.Parse([]string{"--config", path}); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.config, _, err = flags.Load(os.Hostname); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *runner) step(s *step) {
	r.t.Helper()
	r.node = r.node.with(s.NodeChanges)
	s.write(r.t, r.dir, r.node)
	logger := slog.New(slog.DiscardHandler)
	src := source.NewDir(source.Options{Dir: r.dir, NodeName: r.config.NodeName, Logger: logger})
	state, _, err := control.Load(r.t.Context(), src, r.config, r.node.addresses())
	if err != nil {
		r.t.Fatalf("step %q: %v", s.Name, err)
	}
	report, err := r.program(state, s.RestartAgent)
	if err != nil {
		r.t.Fatalf("step %q: %v", s.Name, err)
	}
	// Connections must find their way before the rows of gone endpoints are
	// removed, too.
	r.flows(s, "before housekeeping, ", func(f *flow) bool { return !s.hasAffinity(f) })
	if err := r.tidy(report); err != nil {
		r.t.Fatalf("step %q: %v", s.Name, err)
	}
	pause := time.Duration(s.PauseSeconds * float64(time.Second))
	r.fake.Pass(pause)
	r.time = r.time.Add(pause)
	r.clients = make(map[string]map[netip.Addr]netip.AddrPort)
	r.flows(s, "", func(*flow) bool { return true })
}

// flows runs the flows of a step that which wants.
func (r *runner) flows(s *step, when string, which func(*flow) bool) {
	r.t.Helper()
	for i := range s.Flows {
		if f := &s.Flows[i]; !s.isTracked(f) && which(f) {
			r.flow(s, f, when)
		}
	}
}

// program takes the state to the fake kernel.
func (r *runner) program(state dataplane.State, restart bool) (dataplane.Report, error) {
	ctx := r.t.Context()
	var report dataplane.Report
	var err error
	if r.syncer == nil || restart {
		r.syncer = r.fake.NewSyncer(nftables.Options{Layout: r.layout, Now: func() time.Time { return r.time }})
		report, err = r.syncer.Reset(ctx, state)
	} else {
		report, err = r.syncer.Sync(ctx, difference(r.state, state))
	}
	r.state = state
	return report, err
}

// tidy does what becomes due. Pins do not age meanwhile: most of that time only
// unused chains are waited for.
func (r *runner) tidy(report dataplane.Report) error {
	ctx := r.t.Context()
	var err error
	for err == nil && !report.Due.IsZero() {
		r.time = report.Due
		report, err = r.syncer.Sync(ctx, dataplane.Update{})
	}
	if err != nil {
		return err
	}
	if len(report.Rejected) > 0 {
		return fmt.Errorf("rejected: %v", report.Rejected)
	}
	_, err = r.syncer.Sweep(ctx)
	return err
}

func difference(before, now dataplane.State) dataplane.Update {
	var update dataplane.Update
	if !before.Settings.Equal(&now.Settings) {
		update.Settings = &now.Settings
	}
	for key := range before.ServicePorts {
		if _, ok := now.ServicePorts[key]; !ok {
			update.Removed = append(update.Removed, key)
		}
	}
	for key, sp := range now.ServicePorts {
		if old, ok := before.ServicePorts[key]; !ok || !old.Equal(&sp) {
			update.Changed = append(update.Changed, sp)
		}
	}
	return update
}

// packetOf returns the first packet of a flow from source.
func (r *runner) packetOf(f *flow, source netip.Addr) nfttest.Packet {
	p := nfttest.Packet{Source: source, Dest: netip.AddrPortFrom(netip.MustParseAddr(f.DestIP), f.DestPort)}
	switch f.Protocol {
	case "TCP":
		p.Protocol = dataplane.TCP
	case "UDP":
		p.Protocol = dataplane.UDP
	default:
		p.Protocol = dataplane.SCTP
	}
	switch f.Client {
	case "pod":
		p.In = "pod0"
	case "external":
		p.In = "ext0"
	}
	return p
}

func (r *runner) flow(s *step, f *flow, when string) {
	r.t.Helper()
	tracer, err := nfttest.NewTracer(r.fake.Table(r.node.family()), r.node.addresses()...)
	if err != nil {
		r.t.Fatalf("step %q: %v", s.Name, err)
	}
	source := netip.MustParseAddr(f.SourceIP)
	var got []string
	if s.hasAffinity(f) {
		got = r.sticky(tracer, f, source)
	} else {
		outcomes, err := tracer.Trace(r.packetOf(f, source))
		if err != nil {
			r.t.Fatalf("step %q, %s: %v", s.Name, f.Name, err)
		}
		for _, o := range outcomes {
			got = append(got, describe(f, o))
		}
	}
	slices.Sort(got)
	want := f.wanted()
	if f.SameClientsAs != "" && !slices.ContainsFunc(got, func(g string) bool { return !slices.Contains(want, g) }) {
		return
	}
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		r.t.Errorf("step %q, %s%s: %s %s %s -> %s:%d (-want +got):\n%s", s.Name, when, f.Name, f.Client, f.Protocol, f.SourceIP, f.DestIP, f.DestPort, diff)
	}
}

// describe leaves out what means nothing for a verdict.
func describe(f *flow, o nfttest.Outcome) string {
	if o.Verdict == "reject" || o.Verdict == "drop" || f.Masquerade == nil && f.MasqueradeByEndpoint == nil {
		o.Masquerade = false
	}
	return o.String()
}

func (f *flow) wanted() []string {
	if f.Expected.Verdict != "DNAT" {
		want := strings.ToLower(f.Expected.Verdict)
		if want == "none" && f.Masquerade != nil && *f.Masquerade {
			want += " masquerade"
		}
		return []string{want}
	}
	var want []string
	for _, endpoint := range f.Expected.Endpoints {
		masquerade, given := f.MasqueradeByEndpoint[endpoint]
		if !given && f.Masquerade != nil {
			masquerade = *f.Masquerade
		}
		if masquerade {
			endpoint += " masquerade"
		}
		want = append(want, endpoint)
	}
	slices.Sort(want)
	return want
}

// sticky connects many clients several times; each has to keep its endpoint.
func (r *runner) sticky(tracer *nfttest.Tracer, f *flow, source netip.Addr) []string {
	const clients, times = 24, 3
	known := r.clients[f.SameClientsAs]
	mine := make(map[netip.Addr]netip.AddrPort)
	r.clients[f.Name] = mine
	var got []string
	for i := range clients {
		for time := range times {
			outcome, learned, err := tracer.Connect(r.packetOf(f, source), func(n int) int { return (i + time) % n })
			if err != nil {
				r.t.Fatal(err)
			}
			for _, l := range learned {
				if err := r.fake.Learn(r.node.family(), l.Set, l.Key, l.Value, l.Timeout); err != nil {
					r.t.Fatal(err)
				}
			}
			if tracer, err = nfttest.NewTracer(r.fake.Table(r.node.family()), r.node.addresses()...); err != nil {
				r.t.Fatal(err)
			}
			if before, ok := mine[source]; ok && before != outcome.Endpoint {
				r.t.Errorf("%s: client %s was at %s and is at %s", f.Name, source, before, outcome.Endpoint)
			}
			if before, ok := known[source]; ok && before != outcome.Endpoint {
				r.t.Errorf("%s: client %s is at %s, but with %q it was at %s", f.Name, source, outcome.Endpoint, f.SameClientsAs, before)
			}
			mine[source] = outcome.Endpoint
			got = append(got, describe(f, outcome))
		}
		source = source.Next()
	}
	return got
}

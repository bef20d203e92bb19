// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
)

// topStart is when samples of tests begin.
func topStart() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }

// sampleService is a Service of a sample; its count grows by rate a second.
type sampleService struct {
	name    string
	rate    uint64
	verdict observe.Verdict
	logE    float64
}

func sampleServices() []sampleService {
	return []sampleService{
		{"shop/cart:http", 120, observe.Even, 0.4},
		{"shop/catalog:http", 12_345, observe.NotEven, 61.3},
		{"shop/names:dns", 0, observe.Untested, 0},
		{"tools/a-name-that-is-much-longer-than-the-column-has-room:metrics", 3, observe.TooFew, -0.7},
	}
}

// topSampleAt is what a node with these Services says after some seconds.
func topSampleAt(second int, services ...sampleService) *topSample {
	at := topStart().Add(time.Duration(second) * time.Second)
	list := &api.ServiceList{ReadAt: at, Total: len(services)}
	total := uint64(0)
	for i, s := range services {
		namespace, rest, _ := strings.Cut(s.name, "/")
		name, port, _ := strings.Cut(rest, ":")
		count := 1000 + s.rate*uint64(second)
		total += count
		list.Items = append(list.Items, api.Service{
			Namespace: namespace, Name: name, Port: port, Protocol: "tcp", Family: 4 + 2*(i%2), Endpoints: 1 + i,
			Selections: count, Verdict: s.verdict, LogE: s.logE,
		})
	}
	// 3 of 4 take 1 to 2 µs, the rest 4 to 8 µs.
	counts := make([]uint64, observe.HistogramBuckets)
	counts[5], counts[7] = total/4*3, total/4
	return &topSample{
		services: list,
		latency: &api.LatencyList{ReadAt: at, Items: []api.Latency{
			{Family: 4, Hook: observe.Prerouting, Outcome: observe.Translated, Counts: counts},
			{Family: 4, Hook: observe.Prerouting, Outcome: observe.Missed, Counts: []uint64{999}},
		}},
		status: &api.Status{
			Agent: api.Agent{Node: "node-1", PID: 42, Started: topStart().Add(-time.Hour)},
			Dataplane: api.Dataplane{
				Layout: "markfree", Healthy: true, Synced: true, ServicePorts: len(services), Endpoints: 10,
				LastSync: topStart().Add(-3 * time.Second),
			},
			Probes: api.Probes{
				ProbeStatus: observe.ProbeStatus{Mode: observe.Netfilter}, ReadAt: at, Selections: total,
				Foreign: uint64(second / 2),
			},
		},
	}
}

// runningTop is a model after two samples that are two seconds apart.
func runningTop(width, height int) *topModel {
	m := newTopModel(2*time.Second, "")
	m.resize(width, height)
	m.take(topSampleAt(0, sampleServices()...), topStart())
	m.take(topSampleAt(2, sampleServices()...), topStart().Add(2*time.Second))
	return m
}

func press(m *topModel, keys ...topKey) {
	for _, key := range keys {
		m.press(key)
	}
}

func typed(text string) []topKey {
	var keys []topKey
	for _, r := range text {
		keys = append(keys, topKey(r))
	}
	return keys
}

// render marks the style of lines in front of them.
func render(lines []topLine) string {
	var out strings.Builder
	for _, line := range lines {
		mark := map[topStyle]string{stylePlain: " ", styleStrong: "!", styleInverse: "#"}[line.style]
		fmt.Fprintln(&out, strings.TrimRight(mark+"|"+line.text, " "))
	}
	return out.String()
}

func manyServices(n int) []sampleService {
	services := make([]sampleService, n)
	for i := range services {
		services[i] = sampleService{fmt.Sprintf("ns/s%03d:http", i), uint64(i), observe.Even, float64(n - i)}
	}
	return services
}

func TestTopScreens(t *testing.T) {
	later := topStart().Add(14 * time.Second)
	for _, tc := range []struct {
		name   string
		width  int
		height int
		events func(*topModel)
	}{
		{"rates", 80, 12, func(*topModel) {}},
		{"wide", 120, 12, func(*topModel) {}},
		{"narrow", 60, 12, func(*topModel) {}},
		{"low", 80, 4, func(*topModel) {}},
		{"pipe", 80, 0, func(*topModel) {}},
		{"by-evidence", 80, 12, func(m *topModel) { press(m, 'u') }},
		{"by-name", 80, 12, func(m *topModel) { press(m, 'n') }},
		{"filter-typed", 80, 12, func(m *topModel) { press(m, typed("/Catq")...) }},
		{"filter-kept", 80, 12, func(m *topModel) { press(m, append(typed("/shop/c"), keyEnter, 'n')...) }},
		{"filter-none", 80, 12, func(m *topModel) { press(m, append(typed("/nothing"), keyEnter)...) }},
		{"gone", 80, 12, func(m *topModel) {
			m.tick(later)
			m.fail(errors.New("no agent listens on /run/veridict/veridict.sock: start veridict run, or name its socket with --socket"), later)
		}},
		{"silent", 80, 12, func(m *topModel) { m.tick(later) }},
		{"back", 80, 12, func(m *topModel) {
			m.fail(errors.New("no agent"), later)
			m.take(topSampleAt(22, sampleServices()...), topStart().Add(22*time.Second))
		}},
		{"restarted", 80, 12, func(m *topModel) {
			s := topSampleAt(22, sampleServices()...)
			s.status.Agent.PID++
			m.take(s, topStart().Add(22*time.Second))
		}},
		{"alarms", 80, 14, func(m *topModel) {
			s := topSampleAt(4, sampleServices()...)
			for i := range 5 {
				s.status.Alarms = append(s.status.Alarms, api.Alarm{
					Kind: observe.Uneven, Since: topStart(),
					Text: fmt.Sprintf("shop/catalog:http is uneven: of %d draws 0 came to 10.0.0.1:80, 500 were to be expected", i),
				})
			}
			m.take(s, topStart().Add(4*time.Second))
		}},
		{"unwell", 80, 12, func(m *topModel) {
			s := topSampleAt(4, sampleServices()...)
			s.status.Dataplane.Healthy, s.status.Dataplane.LastError = false, "commit: operation not permitted\x1b[2J"
			s.status.Probes.ReadError = "read selections: bad file descriptor"
			m.take(s, topStart().Add(4*time.Second))
		}},
		{"probes-off", 80, 12, func(m *topModel) {
			s := topSampleAt(4, sampleServices()...)
			s.status.Probes = api.Probes{ProbeStatus: observe.ProbeStatus{Mode: observe.Off, Reason: "--observe is off"}}
			s.services.ReadAt, s.latency.Items = time.Time{}, nil
			m.take(s, topStart().Add(4*time.Second))
		}},
		{"starting", 80, 12, func(m *topModel) {
			m.take(&topSample{
				status:   &api.Status{Agent: api.Agent{Node: "node-1"}, Probes: api.Probes{ProbeStatus: observe.ProbeStatus{Mode: observe.Netfilter}}},
				services: new(api.ServiceList), latency: new(api.LatencyList),
			}, topStart().Add(4*time.Second))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := runningTop(tc.width, tc.height)
			tc.events(m)
			lines := m.lines()
			checkFits(t, m, lines)
			compareGolden(t, "top/"+tc.name+".txt", render(lines))
		})
	}
}

func checkFits(t interface {
	Helper()
	Errorf(string, ...any)
}, m *topModel, lines []topLine,
) {
	t.Helper()
	if m.height > 0 && len(lines) != m.height {
		t.Errorf("%d lines on %d", len(lines), m.height)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line.text); n > m.width {
			t.Errorf("%d characters, want at most %d: %s", n, m.width, line.text)
		}
	}
}

// shown returns the names in the table.
func shown(m *topModel) []string {
	var names []string
	for _, line := range m.lines() {
		if name, _, _ := strings.Cut(line.text, " "); strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	return names
}

func TestTopScrolls(t *testing.T) {
	// 3 lines of state, 1 about alarms is the last of them, the header and the footer
	// leave room for 4.
	const height = 10
	for _, tc := range []struct {
		name  string
		keys  []topKey
		first string
	}{
		{"at the top", nil, "ns/s000:http"},
		{"not above it", []topKey{keyUp, keyPageUp}, "ns/s000:http"},
		{"a line", []topKey{keyDown, keyDown, keyUp}, "ns/s001:http"},
		{"a page", []topKey{keyPageDown, keyPageDown, keyPageUp}, "ns/s004:http"},
		{"to the end", []topKey{keyEnd}, "ns/s046:http"},
		{"not below it", []topKey{keyEnd, keyPageDown, keyDown}, "ns/s046:http"},
		{"and back", []topKey{keyEnd, keyHome}, "ns/s000:http"},
		{"another order begins at the top", []topKey{keyEnd, 's'}, "ns/s049:http"},
		{"and so does a filter", append([]topKey{keyEnd}, typed("/s02")...), "ns/s020:http"},
		{"also while it is edited", append(typed("/s02"), keyDown), "ns/s021:http"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newTopModel(time.Second, "")
			m.resize(80, height)
			m.take(topSampleAt(0, manyServices(50)...), topStart())
			m.take(topSampleAt(1, manyServices(50)...), topStart())
			press(m, append([]topKey{'n'}, tc.keys...)...)
			got := shown(m)
			if len(got) != 4 || got[0] != tc.first {
				t.Errorf("shows %v, want 4 from %s on", got, tc.first)
			}
		})
	}
}

func TestTopScrollsBackWhereRowsVanish(t *testing.T) {
	m := newTopModel(time.Second, "")
	m.resize(80, 10)
	m.take(topSampleAt(0, manyServices(50)...), topStart())
	press(m, 'n', keyEnd)
	m.take(topSampleAt(1, manyServices(6)...), topStart())
	if diff := cmp.Diff([]string{"ns/s002:http", "ns/s003:http", "ns/s004:http", "ns/s005:http"}, shown(m)); diff != "" {
		t.Errorf("after Services went (-want +got):\n%s", diff)
	}
	m.resize(80, 12)
	if got := shown(m); len(got) != 6 {
		t.Errorf("a higher terminal shows %v, want all 6", got)
	}
}

func TestTopFilter(t *testing.T) {
	for _, tc := range []struct {
		name    string
		keys    []topKey
		filter  string
		editing bool
		quit    bool
	}{
		{"from the command line", nil, "cart", false, false},
		{"added to", typed("/s"), "carts", true, false},
		{"letters are text", typed("/qsun/"), "cartqsun/", true, false},
		{"erased", []topKey{'/', keyErase, keyErase}, "ca", true, false},
		{"erased all and more", []topKey{'/', keyEraseAll, keyErase}, "", true, false},
		{"erased a character of many bytes", []topKey{'/', 'é', keyErase}, "cart", true, false},
		{"kept", append(typed("/s"), keyEnter), "carts", false, false},
		{"cleared while edited", append(typed("/s"), keyEscape), "", false, false},
		{"cleared later", []topKey{keyEscape}, "", false, false},
		{"quit", typed("q"), "cart", false, true},
		{"quit while edited", []topKey{'/', keyInterrupt}, "cart", true, true},
		{"not endless", typed("/" + strings.Repeat("x", 500)), "cart" + strings.Repeat("x", maxFilter-4), true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newTopModel(time.Second, "cart")
			press(m, tc.keys...)
			if m.filter != tc.filter || m.editing != tc.editing || m.quit != tc.quit {
				t.Errorf("filter %q, editing %t, quit %t; want %q, %t, %t",
					m.filter, m.editing, m.quit, tc.filter, tc.editing, tc.quit)
			}
		})
	}
}

// Whatever happens, what is shown fits the screen.
func TestTopAlwaysFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newTopModel(time.Second, "")
		now := topStart()
		keys := rapid.SampledFrom(slices.Concat(typed("/sunxé:"), []topKey{
			keyUp, keyDown, keyPageUp, keyPageDown, keyHome, keyEnd, keyEscape, keyEnter, keyErase, keyEraseAll,
		}))
		for second := range rapid.IntRange(1, 12).Draw(t, "events") {
			now = now.Add(time.Second)
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0:
				s := topSampleAt(second, manyServices(rapid.IntRange(0, 30).Draw(t, "services"))...)
				s.status.Alarms = make([]api.Alarm, rapid.IntRange(0, 5).Draw(t, "alarms"))
				m.take(s, now)
			case 1:
				m.fail(errors.New(strings.Repeat("long and ", 30)), now)
			case 2:
				m.resize(rapid.IntRange(1, 200).Draw(t, "width"), rapid.IntRange(1, 60).Draw(t, "height"))
			case 3:
				m.press(keys.Draw(t, "key"))
			case 4:
				m.tick(now)
			}
			checkFits(t, m, m.lines())
		}
	})
}

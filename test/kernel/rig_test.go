// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/compare/testbed/testmain"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// start is called first in every test. It leaves no table behind.
func start(t *testing.T) {
	t.Helper()
	testmain.NeedRoot(t)
	t.Cleanup(func() { nft(t, "flush ruleset") })
}

// nft runs a script of the nft program and returns what it prints.
func nft(t testing.TB, script string) string {
	t.Helper()
	out, err := tryNFT(script)
	if err != nil {
		t.Fatalf("nft %s: %v", script, err)
	}
	return out
}

func tryNFT(script string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "nft", "-f", "-")
	cmd.Stdin = bytes.NewBufferString(script)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return stdout.String(), nil
}

// list returns what nft prints for "nft list ARGS".
func list(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", append([]string{"list"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft list %v: %v: %s", args, err, out)
	}
	return string(out)
}

// newSyncer returns a Syncer that is closed with the test.
func newSyncer(t testing.TB, options nftables.Options) *nftables.Syncer {
	t.Helper()
	s, err := nftables.New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustReset(t testing.TB, s *nftables.Syncer, state dataplane.State) dataplane.Report {
	t.Helper()
	report, err := s.Reset(t.Context(), state)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func mustSync(t testing.TB, s *nftables.Syncer, update dataplane.Update) dataplane.Report {
	t.Helper()
	report, err := s.Sync(t.Context(), update)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// clock is a clock that only moves when it is told to.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{now: time.Unix(1_000_000, 0)} }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// settle does all work that becomes due.
func settle(t testing.TB, s *nftables.Syncer, c *clock) dataplane.Report {
	t.Helper()
	var report dataplane.Report
	for range 100 {
		if report = mustSync(t, s, dataplane.Update{}); report.Due.IsZero() {
			return report
		}
		c.now = report.Due
	}
	t.Fatalf("there is always something due; rejected: %v", report.Rejected)
	return dataplane.Report{}
}

// verify fails the test if the kernel is not as the state wants it.
func verify(t testing.TB, layout nftables.Layout, state dataplane.State) {
	t.Helper()
	differences, err := nftables.Verify(t.Context(), nftables.Options{Layout: layout}, state)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range differences {
		if i == 20 {
			t.Errorf("and %d more", len(differences)-i)
			break
		}
		t.Error("the kernel differs:", d)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// equal compares reports, rows and other facts.
func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// eachLayout runs a test in both layouts.
func eachLayout(t *testing.T, test func(t *testing.T, layout nftables.Layout)) {
	for _, layout := range []nftables.Layout{nftables.MarkFree, nftables.CTMark} {
		t.Run(string(layout), func(t *testing.T) {
			start(t)
			test(t, layout)
		})
	}
}

// quiet are the options of a Syncer whose warnings are expected.
func quiet(layout nftables.Layout) nftables.Options {
	return nftables.Options{Layout: layout, Logger: slog.New(slog.DiscardHandler)}
}

// port makes a ServicePort. The name says which Service it is of.
func port(name string, vip netip.AddrPort, protocol dataplane.Protocol, endpoints ...netip.AddrPort) dataplane.ServicePort {
	sp := dataplane.ServicePort{
		Key: dataplane.ServicePortKey{
			ServicePortName: dataplane.ServicePortName{Namespace: "test", Name: name, Protocol: protocol},
			Family:          dataplane.FamilyOf(vip.Addr()),
		},
		ClusterIP: vip.Addr(), Port: vip.Port(),
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	for _, ep := range endpoints {
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: ep})
	}
	return sp
}

func stateOf(settings dataplane.Settings, ports ...dataplane.ServicePort) dataplane.State {
	state := dataplane.State{Settings: settings, ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{}}
	for _, sp := range ports {
		state.ServicePorts[sp.Key] = sp
	}
	return state
}

// nth returns the address that lies n after base.
func nth(base netip.Addr, n int) netip.Addr {
	b := base.AsSlice()
	for i := len(b) - 1; n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// endpointsFrom returns n endpoints on consecutive addresses.
func endpointsFrom(base netip.AddrPort, n int) []netip.AddrPort {
	list := make([]netip.AddrPort, n)
	for i := range list {
		list[i] = netip.AddrPortFrom(nth(base.Addr(), i), base.Port())
	}
	return list
}

var counterPackets = regexp.MustCompile(`counter packets (\d+)|packets (\d+) bytes`)

// packets returns what the only counter of the listing has counted.
func packets(t testing.TB, args ...string) int {
	t.Helper()
	listing := list(t, args...)
	found := counterPackets.FindStringSubmatch(listing)
	if found == nil {
		t.Fatalf("no counter in nft list %v:\n%s", args, listing)
	}
	n, err := strconv.Atoi(found[1] + found[2])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// missed returns how many lookups have not found their row.
func missed(t testing.TB) int {
	t.Helper()
	return packets(t, "chain", "ip", "veridict", "missed") + packets(t, "chain", "ip6", "veridict", "missed")
}

// olderThan says whether this kernel is older than the given release.
func olderThan(t testing.TB, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var is struct{ major, minor int }
	if _, err := fmt.Sscanf(release, "%d.%d", &is.major, &is.minor); err != nil {
		t.Fatalf("kernel release %q: %v", release, err)
	}
	return is.major < major || is.major == major && is.minor < minor
}

// lookupsRaceCommits says whether lookups of this kernel may miss an element that
// a commit is just replacing, as those of kernels before 6.17 may. Of those that
// tests run on, Debian's 6.12 has the mending change, too.
func lookupsRaceCommits(t testing.TB) bool {
	t.Helper()
	return olderThan(t, 6, 12)
}

// excusable returns how many of n lookups in an endpoints map may miss their row
// although it is there.
func excusable(t testing.TB, n int) int {
	t.Helper()
	if !lookupsRaceCommits(t) {
		return 0
	}
	return n/20_000 + 1
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/bpf/sockets"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/compare/testbed/testmain"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/localhost"
	"github.com/veridict/veridict/dataplane/nftables"
)

// redirected is a cluster with a NodePort over TCP and UDP in both families that
// the node reaches by loopback addresses, through programs on a cgroup of this
// process.
type redirected struct {
	*cluster
	t        *testing.T
	group    string
	programs *sockets.Programs
	syncer   *localhost.Syncer
	settings dataplane.Settings
	ports    []dataplane.ServicePort
	endpoint map[dataplane.Family]netip.AddrPort
}

const redirectedPort = 31098

func newRedirected(t *testing.T, pinPath string) *redirected {
	t.Helper()
	start(t)
	r := &redirected{cluster: sharedCluster(t), t: t, settings: clusterSettings()}
	r.endpoint = map[dataplane.Family]netip.AddrPort{
		dataplane.IPv4: netip.AddrPortFrom(nth(endpoints4.Addr(), 980), 8080),
		dataplane.IPv6: netip.AddrPortFrom(nth(endpoints6.Addr(), 980), 8080),
	}
	for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
		for vip, family := range map[string]dataplane.Family{"10.96.0.98:80": dataplane.IPv4, "[fd00:10:96::98]:80": dataplane.IPv6} {
			r.serve(t, protocol, r.endpoint[family])
			sp := port("redirected", netip.MustParseAddrPort(vip), protocol, r.endpoint[family])
			sp.External = &dataplane.External{NodePort: redirectedPort, Local: true}
			r.ports = append(r.ports, sp)
		}
	}
	r.settings.Localhost = dataplane.LocalhostProxied
	r.settings.NodePortAddresses = testbed.DefaultPlan().NodeAddrs
	r.settings.LocalhostTargets = testbed.DefaultPlan().NodeAddrs
	r.openSockets(pinPath)
	r.syncer = localhost.New(newSyncer(t, quiet(nftables.MarkFree)), localhost.Options{
		Logger: slog.New(slog.DiscardHandler), Redirector: r.programs,
	})
	t.Cleanup(func() { r.syncer.Close() })
	if _, err := r.syncer.Reset(t.Context(), stateOf(r.settings, r.ports...)); err != nil {
		t.Fatal(err)
	}
	return r
}

// openSockets attaches the programs to a cgroup that has this process only.
func (r *redirected) openSockets(pinPath string) {
	r.t.Helper()
	group, err := testbed.EnterCgroup()
	if err != nil {
		r.t.Fatal(err)
	}
	r.group = group.Path
	r.t.Cleanup(func() {
		if err := group.Close(); err != nil {
			r.t.Error(err)
		}
	})
	r.programs, err = sockets.Open(sockets.Options{CgroupPath: group.Path, PinPath: pinPath, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := r.programs.Close(); err != nil {
			r.t.Error(err)
		}
	})
}

func (r *redirected) redirections() []sockets.Redirection {
	r.t.Helper()
	all, err := r.programs.Redirections()
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func (r *redirected) sync(update dataplane.Update) {
	r.t.Helper()
	if _, err := r.syncer.Sync(r.t.Context(), update); err != nil {
		r.t.Fatal(err)
	}
}

// ask returns the endpoint that answers, or why none does.
func (r *redirected) ask(addr string, protocol dataplane.Protocol) (netip.AddrPort, string) {
	to := netip.MustParseAddrPort(addr)
	answer, err := testbed.Ask(r.t.Context(), dataplane.VIP{Addr: to.Addr(), Port: to.Port(), Protocol: protocol})
	return answer.Endpoint, testbed.Reason(err)
}

func TestRedirectedNodePorts(t *testing.T) {
	r := newRedirected(t, "")
	for addr, family := range map[string]dataplane.Family{
		"127.0.0.1:31098": dataplane.IPv4, "127.9.9.9:31098": dataplane.IPv4, "[::1]:31098": dataplane.IPv6,
	} {
		for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
			if got, reason := r.ask(addr, protocol); got != r.endpoint[family] {
				t.Errorf("%s over %s: %s %s, want %s", addr, protocol, got, reason, r.endpoint[family])
			}
		}
	}
	halfClose(t, "127.0.0.1:31098")
	halfClose(t, "[::1]:31098")
	counts, err := r.programs.Counts()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "counters", counts, sockets.Counts{IPv4TCPConnects: 3, IPv6TCPConnects: 2, IPv4UDPConnects: 2, IPv6UDPConnects: 1})

	r.sync(dataplane.Update{Removed: []dataplane.ServicePortKey{r.ports[0].Key, r.ports[1].Key, r.ports[2].Key, r.ports[3].Key}})
	if left := r.redirections(); len(left) > 0 {
		t.Errorf("redirections without ServicePorts: %v", left)
	}
	for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
		if _, reason := r.ask("127.0.0.1:31098", protocol); reason != "refused" {
			t.Errorf("a NodePort that was removed, over %s: %q, want refused", protocol, reason)
		}
	}
}

// TestRedirectedPeers asks the kernel for the peer's address, as clients do that do
// not trust an answer from elsewhere.
func TestRedirectedPeers(t *testing.T) {
	r := newRedirected(t, "")
	for _, test := range []struct {
		name   string
		domain int
		to     string
		family dataplane.Family
	}{
		{"IPv4", unix.AF_INET, "127.0.0.1:31098", dataplane.IPv4},
		{"another address of the range", unix.AF_INET, "127.0.0.2:31098", dataplane.IPv4},
		{"IPv6", unix.AF_INET6, "[::1]:31098", dataplane.IPv6},
		{"IPv4-mapped", unix.AF_INET6, "[::ffff:127.0.0.1]:31098", dataplane.IPv4},
		{"the node's own address", unix.AF_INET, "10.240.0.1:31098", dataplane.IPv4},
	} {
		for _, connected := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, UDP, connected %t", test.name, connected), func(t *testing.T) {
				s := newSocket(t, test.domain, unix.SOCK_DGRAM)
				to := netip.MustParseAddrPort(test.to)
				if connected {
					s.connect(to)
					equal(t, "peer", s.peer(), to)
				}
				for range 2 {
					s.send(to, connected)
					answer, from := s.receive()
					equal(t, "source of the answer", from, to)
					if !strings.HasPrefix(answer, r.endpoint[test.family].String()+" ") {
						t.Errorf("answer %q, want one of %s", answer, r.endpoint[test.family])
					}
				}
			})
		}
		t.Run(test.name+", TCP", func(t *testing.T) {
			s := newSocket(t, test.domain, unix.SOCK_STREAM)
			to := netip.MustParseAddrPort(test.to)
			s.connect(to)
			equal(t, "peer", s.peer(), to)
		})
	}
}

func TestRedirectedOnlyWhatIsMeant(t *testing.T) {
	r := newRedirected(t, "")
	loopback4 := netip.MustParseAddr("127.0.0.1")
	serveIn := func(ns *testbed.Namespace, addr netip.AddrPort) {
		server, err := ns.Serve(dataplane.TCP, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
	}
	own := netip.AddrPortFrom(loopback4, redirectedPort)
	serveIn(r.client.Namespace, own)
	err := r.client.Do(func() error {
		if got, reason := r.ask(own.String(), dataplane.TCP); got != own {
			t.Errorf("a pod that asks its own loopback address gets %s %s, want %s", got, reason, own)
		}
		if _, reason := r.ask(own.String(), dataplane.UDP); reason != "refused" {
			t.Errorf("a pod that asks its own loopback address over UDP: %q, want refused", reason)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	other := netip.AddrPortFrom(loopback4, redirectedPort+1)
	serveIn(r.node, other)
	if got, reason := r.ask(other.String(), dataplane.TCP); got != other {
		t.Errorf("a port that is no NodePort: %s %s, want %s", got, reason, other)
	}

	for _, bind := range []func(s *socket){
		func(s *socket) { s.bind(netip.AddrPortFrom(loopback4, 0)) },
		func(s *socket) { s.bindToDevice("lo") },
	} {
		s := newSocket(t, unix.AF_INET, unix.SOCK_STREAM)
		bind(s)
		if err := s.tryConnect(own); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a socket that is bound: %v, want %v", err, unix.ECONNREFUSED)
		}
	}
	newSocket(t, unix.AF_INET, unix.SOCK_DGRAM).sendFrom(own, own)
	own6 := netip.AddrPortFrom(netip.IPv6Loopback(), redirectedPort)
	newSocket(t, unix.AF_INET6, unix.SOCK_DGRAM).sendFrom(own6, own6)
	counts, err := r.programs.Counts()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "counters", counts, sockets.Counts{Bound: 2})
}

func TestRedirectedAffinity(t *testing.T) {
	r := newRedirected(t, "")
	endpoints := endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 981), 8080), 8)
	r.serve(t, dataplane.TCP, endpoints...)
	sp := port("sticky", netip.MustParseAddrPort("10.96.0.99:80"), dataplane.TCP, endpoints...)
	sp.AffinitySeconds = 600
	sp.External = &dataplane.External{NodePort: redirectedPort + 2}
	r.sync(dataplane.Update{Changed: []dataplane.ServicePort{sp}})
	seen := map[netip.AddrPort]bool{}
	for range 20 {
		got, reason := r.ask("127.0.0.1:31100", dataplane.TCP)
		if reason != "" {
			t.Fatal(reason)
		}
		seen[got] = true
	}
	if len(seen) != 1 {
		t.Errorf("20 connections with session affinity came to %d endpoints", len(seen))
	}
}

// TestRedirectionOutlivesTheProcess pins everything, as an agent does that is
// replaced while clients connect.
func TestRedirectionOutlivesTheProcess(t *testing.T) {
	pins := pinDirectory(t)
	r := newRedirected(t, pins)
	stop := r.askForever("127.0.0.1:31098")
	for range 10 {
		r.reopen(pins)
	}
	asked := stop()
	if got := len(r.redirections()); got != len(r.ports) {
		t.Errorf("%d redirections are left, want %d", got, len(r.ports))
	}
	if counts, err := r.programs.Counts(); err != nil || counts.IPv4TCPConnects != asked {
		t.Errorf("%d connections counted, %v; want %d", counts.IPv4TCPConnects, err, asked)
	}
	if err := r.programs.Close(); err != nil {
		t.Fatal(err)
	}
	if got, reason := r.ask("127.0.0.1:31098", dataplane.TCP); got != r.endpoint[dataplane.IPv4] {
		t.Errorf("without a process: %s %s, want %s", got, reason, r.endpoint[dataplane.IPv4])
	}
	if err := sockets.Remove(pins); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pins); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after removal: %v, want %v", err, os.ErrNotExist)
	}
	if _, reason := r.ask("127.0.0.1:31098", dataplane.TCP); reason != "refused" {
		t.Errorf("after removal: %q, want refused", reason)
	}
}

// pinDirectory returns a path of a BPF file system, which ends with the test.
func pinDirectory(t *testing.T) string {
	t.Helper()
	testmain.NeedRoot(t)
	fs := t.TempDir()
	if err := unix.Mount("bpf", fs, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(fs, 0); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(fs, "veridict", "sockets")
}

// reopen has another process take over.
func (r *redirected) reopen(pins string) {
	r.t.Helper()
	again, err := sockets.Open(sockets.Options{CgroupPath: r.group, PinPath: pins, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.programs.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.programs = again
}

// Pins that cannot be gone on with are replaced: those of another cgroup, and maps
// of another version.
func TestRedirectionReplacesPins(t *testing.T) {
	pins := pinDirectory(t)
	if err := os.MkdirAll(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	foreign, err := ebpf.NewMap(&ebpf.MapSpec{Name: "counts", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if err := foreign.Pin(filepath.Join(pins, "counts")); err != nil {
		t.Fatal(err)
	}
	r := newRedirected(t, pins)
	works := func(when string) {
		t.Helper()
		if got, reason := r.ask("127.0.0.1:31098", dataplane.TCP); got != r.endpoint[dataplane.IPv4] {
			t.Errorf("%s: %s %s, want %s", when, got, reason, r.endpoint[dataplane.IPv4])
		}
	}
	works("after a map of another version")

	group, err := testbed.EnterCgroup()
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	if _, reason := r.ask("127.0.0.1:31098", dataplane.TCP); reason != "refused" {
		t.Errorf("in a cgroup without programs: %q, want refused", reason)
	}
	r.group = group.Path
	r.reopen(pins)
	works("after pins of another cgroup")

	_, err = sockets.Open(sockets.Options{CgroupPath: r.group + "-none", PinPath: pins, Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a cgroup that is not there: %v, want %v", err, os.ErrNotExist)
	}
	if _, err := os.Stat(pins); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins after a failure: %v, want %v", err, os.ErrNotExist)
	}
}

// askForever connects until the function that it returns is called, which fails the
// test if any connection failed and returns how many there were.
func (r *redirected) askForever(addr string) (stop func() uint64) {
	done := make(chan struct{})
	ended := make(chan uint64)
	go func() {
		var n uint64
		for {
			select {
			case <-done:
				ended <- n
				return
			default:
			}
			n++
			if got, reason := r.ask(addr, dataplane.TCP); got != r.endpoint[dataplane.IPv4] {
				r.t.Errorf("while programs are replaced: %s %s, want %s", got, reason, r.endpoint[dataplane.IPv4])
			}
		}
	}()
	return func() uint64 {
		close(done)
		return <-ended
	}
}

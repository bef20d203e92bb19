// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/veridict/veridict/bpf/sockets"
	"github.com/veridict/veridict/compare/testbed"
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
	r.programs = openSockets(t, pinPath)
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
func openSockets(t *testing.T, pinPath string) *sockets.Programs {
	t.Helper()
	root, err := sockets.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	group, err := testbed.EnterCgroup(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	})
	programs, err := sockets.Open(sockets.Options{CgroupPath: group.Path, PinPath: pinPath, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := programs.Close(); err != nil {
			t.Error(err)
		}
	})
	return programs
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
}

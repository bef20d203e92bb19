// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// probesMode is how this kernel is to be observed.
func probesMode(t testing.TB) probes.Mode {
	t.Helper()
	if olderThan(t, 6, 4) {
		return probes.Fentry
	}
	return probes.Netfilter
}

// alone fails the test unless the programs of p, which is not the first of this test,
// are attached as if nothing had been before.
func alone(t testing.TB, p *probes.Probes) {
	t.Helper()
	if probesMode(t) == probes.Fentry {
		equal(t, "hooks", p.Status().Hooks, []probes.HookStatus{})
		// The kernel lets go of a tracing program a moment after its pin has gone.
		await(t, func() bool { return tracing(t) == 4 })
		return
	}
	equal(t, "hooks", p.Status().Hooks, []probes.HookStatus{
		{Family: 4, Hook: probes.Prerouting, Before: -101, After: -99},
		{Family: 4, Hook: probes.Output, Before: -101, After: -99},
		{Family: 6, Hook: probes.Prerouting, Before: -101, After: -99},
		{Family: 6, Hook: probes.Output, Before: -101, After: -99},
	})
}

// tracing returns how many of the probes' tracing programs are attached on this machine.
func tracing(t testing.TB) int {
	t.Helper()
	n := 0
	var links link.Iterator
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Type != link.TracingType {
			continue
		}
		program, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			t.Fatal(err)
		}
		about, err := program.Info()
		if err := errors.Join(err, program.Close()); err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"enter_", "leave_"} {
			if strings.HasPrefix(about.Name, prefix) {
				n++
			}
		}
	}
	if err := links.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// A mode that the kernel does not have is refused with the reason. Where it has both,
// one takes over from the other and each connection is counted once.
func TestProbesChangeTheirMode(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.TCP, 9)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	usual, other := probesMode(t), probes.Netfilter
	if usual == probes.Netfilter {
		other = probes.Fentry
	}
	o := probes.Options{PinPath: pinPath(t)}
	first := openProbes(t, o, sp)
	ports := new(sourcePorts)
	want := connectFrom(t, ports, c.client, 20, sp.VIP())
	connect := func(p *probes.Probes) {
		t.Helper()
		for key, n := range connectFrom(t, ports, c.client, 20, sp.VIP()) {
			want[key] += n
		}
		equal(t, "selections", newConnections(selections(t, p)), want)
	}
	o.Mode = other
	second, err := probes.Open(o)
	if unsupported, ok := errors.AsType[*probes.Unsupported](err); ok {
		if unsupported.Reason == "" {
			t.Error("no reason is given")
		}
		t.Logf("%s: %v", other, unsupported)
		connect(first)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Detach() })
	equal(t, "mode", second.Status().Mode, other)
	equal(t, "reason", second.Status().Reason, "asked for")
	connect(second)
	third := openProbes(t, probes.Options{PinPath: o.PinPath}, sp)
	connect(third)
	alone(t, third)
	// Tracing programs cannot be detached: they go with the last process that holds them.
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if usual == probes.Netfilter {
		await(t, func() bool { return tracing(t) == 0 })
	}
}

// What another network namespace translates is not counted, though it is to a frontend
// of this one.
func TestProbesSeeOneNamespace(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.TCP, 10)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	p := openProbes(t, probes.Options{}, sp)
	inClient := func(script string) {
		t.Helper()
		err := c.client.Do(func() error {
			_, err := tryNFT(script)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	endpoint := sp.Endpoints[0].Addr
	inClient(fmt.Sprintf(`
table ip pod {
	chain output {
		type nat hook output priority -100
		ip daddr %s tcp dport %d dnat to %s
	}
}`, sp.ClusterIP, sp.Port, endpoint))
	t.Cleanup(func() { inClient("delete table ip pod") })
	const n = 20
	connectFrom(t, new(sourcePorts), c.client, n, sp.VIP())
	equal(t, "selections", newConnections(selections(t, p)), map[probes.Key]uint64{})
	equal(t, "first packets", timed(t, p), map[place]uint64{{4, probes.Prerouting, probes.Missed}: n})

	// The node's own are.
	for range n {
		answer, err := ask(t, c.node, netip.AddrPortFrom(sp.ClusterIP, sp.Port).String(), dataplane.TCP)
		if err != nil {
			t.Fatal(testbed.Reason(err), answer)
		}
	}
	equal(t, "selections of the node", total(selections(t, p)), uint64(n))
}

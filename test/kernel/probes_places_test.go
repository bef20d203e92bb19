// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// occupy adds filter chains at priorities of a hook.
func occupy(t testing.TB, family, hook string, priorities ...int32) {
	t.Helper()
	var script strings.Builder
	fmt.Fprintf(&script, "table %s neighbour {\n", family)
	for _, priority := range priorities {
		fmt.Fprintf(&script, "chain %s%d { type filter hook %s priority %d; }\n", hook, -priority, hook, priority)
	}
	script.WriteString("}\n")
	nft(t, script.String())
}

// Where others sit at the priorities that the probes would take first, they take the
// next ones and count as ever. Tracing programs have none.
func TestProbesMakeWayForOthers(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.TCP, 6)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	occupy(t, "ip", "prerouting", -101, -102, -99)
	occupy(t, "ip", "output", -99)
	p := openProbes(t, probes.Options{}, sp)
	if probesMode(t) == probes.Fentry {
		equal(t, "hooks", p.Status().Hooks, []probes.HookStatus{})
	} else {
		equal(t, "hooks", p.Status().Hooks, []probes.HookStatus{
			{Family: 4, Hook: probes.Prerouting, Before: -103, After: -98},
			{Family: 4, Hook: probes.Output, Before: -101, After: -98},
			{Family: 6, Hook: probes.Prerouting, Before: -101, After: -99},
			{Family: 6, Hook: probes.Output, Before: -101, After: -99},
		})
	}
	ports := new(sourcePorts)
	want := connectFrom(t, ports, c.client, 50, sp.VIP())
	for key, n := range connectFrom(t, ports, &testbed.Pod{Namespace: c.node}, 50, sp.VIP()) {
		want[key] += n
	}
	equal(t, "selections", newConnections(selections(t, p)), want)
}

// Where no place is left the error says where, and nothing stays attached. Tracing
// programs need no place.
func TestProbesWithoutPlaceLeaveNothing(t *testing.T) {
	start(t)
	sharedCluster(t)
	occupy(t, "ip6", "output", -99, -98, -97, -96)
	p, err := probes.Open(probes.Options{})
	switch {
	case probesMode(t) == probes.Fentry:
		if err != nil {
			t.Fatal("open probes that need no place:", err)
		}
		if err := p.Detach(); err != nil {
			t.Error("detach:", err)
		}
	case err == nil || !strings.Contains(err.Error(), "IPv6 output: priorities -99 to -96"):
		t.Errorf("error %v, want one that names the place", err)
	}
	nft(t, "flush ruleset")
	alone(t, openProbes(t, probes.Options{}))
}

// A process that may not load the probes hears by name what it lacks.
func TestProbesNameMissingCapabilities(t *testing.T) {
	start(t)
	for _, test := range []struct {
		drop []int
		want string
	}{
		{[]int{unix.CAP_NET_ADMIN}, "this process lacks CAP_NET_ADMIN"},
		{[]int{unix.CAP_SYS_ADMIN, unix.CAP_BPF}, "this process lacks CAP_BPF"},
		{[]int{unix.CAP_SYS_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}, "this process lacks CAP_BPF, CAP_PERFMON"},
	} {
		err := without(test.drop, func() error {
			_, err := probes.Open(probes.Options{})
			return err
		})
		unsupported, ok := errors.AsType[*probes.Unsupported](err)
		if !ok || unsupported.Reason != test.want {
			t.Errorf("error %v, want an Unsupported: %s", err, test.want)
		}
	}
	for _, drop := range []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE} {
		err := without([]int{drop}, func() error {
			p, err := probes.Open(probes.Options{})
			if err != nil {
				return err
			}
			return p.Detach()
		})
		if drop == unix.CAP_SYS_ADMIN && probesMode(t) == probes.Fentry {
			if err == nil || !strings.HasSuffix(err.Error(), "this process lacks CAP_SYS_ADMIN, which the kernel wants of who traces a module") {
				t.Errorf("error %v, want one that says what CAP_SYS_ADMIN is needed for", err)
			}
			continue
		}
		if err != nil {
			t.Errorf("without capability %d: %v; it is not needed", drop, err)
		}
	}
}

// without runs fn on a thread that lacks capabilities, which ends with it.
func without(capabilities []int, fn func() error) error {
	result := make(chan error)
	go func() {
		// Never unlocked: the thread is no use to anybody else.
		runtime.LockOSThread()
		result <- func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return err
			}
			for _, c := range capabilities {
				data[c/32].Effective &^= 1 << (c % 32)
			}
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-result
}

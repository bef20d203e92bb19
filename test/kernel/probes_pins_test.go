// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// pinPath returns a directory, not made yet, of a BPF file system that only this
// process sees.
func pinPath(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal("mount a BPF file system:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount the BPF file system:", err)
		}
	})
	return filepath.Join(dir, "veridict")
}

// Pinned probes count on without a process, and the next process goes on from there.
func TestProbesOutliveTheirProcess(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.TCP, 7)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	o := probes.Options{PinPath: pinPath(t)}
	p := openProbes(t, o, sp)
	ports, want := new(sourcePorts), make(map[probes.Key]uint64)
	connect := func() {
		for key, n := range connectFrom(t, ports, c.client, 30, sp.VIP()) {
			want[key] += n
		}
	}
	connect()
	for range 3 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		connect()
		var err error
		if p, err = probes.Open(o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		connect()
		equal(t, "selections", newConnections(selections(t, p)), want)
		equal(t, "first packets", timed(t, p), map[place]uint64{{4, probes.Prerouting, probes.Translated}: uint64(ports.last.Load())})
	}

	if err := p.SetFrontends(nil, nil); err != nil {
		t.Fatal(err)
	}
	connectFrom(t, ports, c.client, 10, sp.VIP())
	equal(t, "selections of a frontend that the next process does not name", newConnections(selections(t, p)), want)

	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := probes.Remove(o.PinPath); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(o.PinPath); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pin path is still there: %v", err)
	}
	alone(t, openProbes(t, probes.Options{}, sp))
}

// Programs are replaced again and again while connections are opened without pause and
// endpoints come and go: each connection is counted once.
func TestProbesCountOnceWhileTheyAreReplaced(t *testing.T) {
	for _, f := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			start(t)
			cluster := churnCluster(t)
			nft(t, watcher)
			c := newChurn(t, quiet(nftables.MarkFree), f)
			tcp, udp := netip.AddrPortFrom(c.vip, tcpPort), netip.AddrPortFrom(c.vip, udpPort)
			var ports []dataplane.ServicePort
			for _, sp := range c.state.ServicePorts {
				ports = append(ports, sp)
			}
			o := probes.Options{PinPath: pinPath(t)}
			p := openProbes(t, o, ports...)
			l, ctx := newLoad(t)
			l.accept(t, cluster)
			l.connect(ctx, c.source, tcp)
			l.sendDatagrams(ctx, cluster, cluster.client.Addrs[family(c.vip)], udp)
			for i := range 20 {
				reached := l.datagrams.Load() + 1000
				await(t, func() bool { return l.datagrams.Load() > reached })
				c.trim(ctx, c.flip(poolSize, 2))
				old := p
				if i%2 == 0 {
					if err := old.Close(); err != nil {
						t.Fatal(err)
					}
				}
				var err error
				if p, err = probes.Open(o); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = p.Detach() })
				if i%2 == 1 {
					if err := old.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
			c.missed += missed(t)
			c.check(l)
			sums := make(map[uint16]uint64)
			for key, s := range selections(t, p) {
				sums[key.VIP.Port()] += s.Drawn
			}
			equal(t, "selections", sums, map[uint16]uint64{
				tcpPort: uint64(l.connects.Load()), udpPort: uint64(counted(t, "arrived")),
			})
			t.Logf("not counted or timed: %+v", losses(t, p))
		})
	}
}

// Counters of another size start anew, which is said.
func TestProbesReplaceMapsOfAnotherKind(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.TCP, 8)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	path, ports := pinPath(t), new(sourcePorts)
	openProbes(t, probes.Options{PinPath: path, MaxSelections: 16}, sp)
	connectFrom(t, ports, c.client, 10, sp.VIP())
	var log bytes.Buffer
	large := openProbes(t, probes.Options{
		PinPath: path, MaxSelections: 32, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}, sp)
	want := connectFrom(t, ports, c.client, 20, sp.VIP())
	equal(t, "selections", newConnections(selections(t, large)), want)
	if !strings.Contains(log.String(), "counters start anew") {
		t.Errorf("the log says nothing of lost counters: %s", log.String())
	}
}

// The usual place of pins is mounted where it is missing.
func TestProbesMountTheBPFFileSystem(t *testing.T) {
	start(t)
	const usual = "/sys/fs/bpf"
	for unix.Unmount(usual, unix.MNT_DETACH) == nil {
	}
	p := openProbes(t, probes.Options{PinPath: usual + "/veridict"})
	if err := p.Detach(); err != nil {
		t.Fatal(err)
	}
	if err := probes.Remove(usual + "/veridict"); err != nil {
		t.Fatal(err)
	}
	_, err := probes.Open(probes.Options{PinPath: filepath.Join(t.TempDir(), "pins")})
	if _, ok := errors.AsType[*probes.Unsupported](err); !ok {
		t.Errorf("error %v, want an Unsupported: the path is in no BPF file system", err)
	}
}

// bpftool prints what the reader returns, with names.
func TestProbesAreReadableByBPFTool(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	path, source := pinPath(t), new(sourcePorts)
	var ports []dataplane.ServicePort
	var vips []dataplane.VIP
	for i, base := range []netip.Addr{endpoints4.Addr(), endpoints6.Addr()} {
		eps := endpointsFrom(netip.AddrPortFrom(nth(base, 390), 8080), 3)
		c.serve(t, dataplane.TCP, eps...)
		vip := netip.MustParseAddrPort([]string{"10.96.0.41:443", "[fd00:10:96::41]:443"}[i])
		sp := port("readable", vip, dataplane.TCP, eps...)
		ports, vips = append(ports, sp), append(vips, sp.VIP())
	}
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), ports...))
	p := openProbes(t, probes.Options{PinPath: path}, ports...)
	connectFrom(t, source, c.client, 50, vips...)

	printed := make(map[probes.Key]uint64)
	for _, name := range []string{"selections4", "selections6"} {
		var entries []struct {
			Formatted struct {
				Key struct {
					VIP          addrBytes `json:"vip"`
					Port         uint16    `json:"port"`
					Protocol     uint16    `json:"protocol"`
					Endpoint     addrBytes `json:"endpoint"`
					EndpointPort uint16    `json:"endpoint_port"`
				} `json:"key"`
				Value struct {
					Drawn  uint64 `json:"drawn"`
					Pinned uint64 `json:"pinned"`
				} `json:"value"`
			} `json:"formatted"`
		}
		dump(t, filepath.Join(path, name), &entries)
		for _, e := range entries {
			k := e.Formatted.Key
			printed[probes.Key{
				VIP: netip.AddrPortFrom(k.VIP.addr(t), k.Port), Protocol: uint8(k.Protocol),
				Endpoint: netip.AddrPortFrom(k.Endpoint.addr(t), k.EndpointPort),
			}] = e.Formatted.Value.Drawn + e.Formatted.Value.Pinned
		}
	}
	equal(t, "what bpftool prints", printed, newConnections(selections(t, p)))

	var histograms []struct {
		Formatted struct {
			Key struct {
				Family  uint8 `json:"family"`
				Hook    uint8 `json:"hook"`
				Outcome uint8 `json:"outcome"`
			} `json:"key"`
			Values []struct {
				Value struct {
					Counts []uint64 `json:"counts"`
					Sum    uint64   `json:"sum_ns"`
				} `json:"value"`
			} `json:"values"`
		} `json:"formatted"`
	}
	dump(t, filepath.Join(path, "latency"), &histograms)
	sums := make(map[place]uint64)
	for _, h := range histograms {
		k := h.Formatted.Key
		for _, cpu := range h.Formatted.Values {
			for _, n := range cpu.Value.Counts {
				if n > 0 {
					sums[place{k.Family, probes.Hook(k.Hook), probes.Outcome(k.Outcome)}] += n
				}
			}
		}
	}
	equal(t, "first packets that bpftool prints", sums, timed(t, p))
}

// addrBytes is an address as bpftool prints it.
type addrBytes []int

func (b addrBytes) addr(t testing.TB) netip.Addr {
	t.Helper()
	raw := make([]byte, len(b))
	for i, n := range b {
		raw[i] = byte(n)
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		t.Fatalf("%v is no address", b)
	}
	return addr
}

// dump parses what bpftool prints of a pinned map.
func dump(t testing.TB, path string, entries any) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bpftool", "-j", "map", "dump", "pinned", path).Output()
	if err != nil {
		t.Fatalf("bpftool map dump pinned %s: %v: %s", path, err, out)
	}
	if err := json.Unmarshal(out, entries); err != nil {
		t.Fatalf("bpftool map dump pinned %s: %v: %s", path, err, out)
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/preflight"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/control/source/kube"
	"github.com/veridict/veridict/dataplane/nftables"
)

// gatherFacts looks at everything that preflight judges. The error is that of ctx.
func gatherFacts(ctx context.Context, cfg config.Config, logger *slog.Logger) (*preflight.Facts, error) {
	f := &preflight.Facts{
		Capabilities: effectiveCapabilities(), Kernel: kernelRelease(), NodeName: cfg.NodeName, Sysctls: map[string]string{},
		ObserveOff: cfg.Observe.Off, ObserveRequired: cfg.Observe.Required, Processes: processes(),
	}
	for _, name := range preflight.Sysctls() {
		if text, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			f.Sysctls[name] = strings.TrimSpace(string(text))
		}
	}
	f.Connections = readNumber("/proc/sys/net/netfilter/nf_conntrack_count")
	f.MaxConnections = readNumber("/proc/sys/net/netfilter/nf_conntrack_max")
	gatherNFTables(ctx, f, nftables.Layout(cfg.Layout))
	gatherObservation(f, cfg.Observe)
	gatherLinks(f)
	gatherOthers(f)
	gatherPorts(ctx, f, cfg)
	if cfg.Client.Kubeconfig != "" || cfg.Client.Master != "" {
		f.APIServer = askAPIServer(ctx, cfg, logger)
	}
	return f, ctx.Err()
}

// effectiveCapabilities returns those of this process that matter.
func effectiveCapabilities() []string {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	var mask uint64
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "CapEff:"); found {
			mask, _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	var names []string
	for name, bit := range map[string]uint{
		"NET_ADMIN": unix.CAP_NET_ADMIN, "SYS_ADMIN": unix.CAP_SYS_ADMIN, "BPF": unix.CAP_BPF, "PERFMON": unix.CAP_PERFMON,
	} {
		if mask&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func kernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// processes returns the names of all programs that this process may see.
func processes() []string {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil
	}
	var names []string
	for _, file := range files {
		// It may have ended.
		if text, err := os.ReadFile(file); err == nil {
			names = append(names, strings.TrimSpace(string(text)))
		}
	}
	return names
}

func readNumber(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	number, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return number
}

func gatherNFTables(ctx context.Context, f *preflight.Facts, layout nftables.Layout) {
	if f.NFTables = nftables.Probe(ctx); f.NFTables != nil {
		return
	}
	f.NFT, f.NFTables = nftables.Version(ctx)
	if f.NFTables == nil {
		f.Rules = nftables.DryRun(ctx, layout)
	}
}

func gatherObservation(f *preflight.Facts, cfg config.Observe) {
	if cfg.Off {
		return
	}
	mode, err := probes.Check()
	f.ProbeMode, f.Observation = string(mode), err
	path, err := pinPath(cfg.PinPath)
	if err != nil || path == "" {
		return
	}
	f.PinPath = path
	for existing := path; existing != "/"; existing = filepath.Dir(existing) {
		var at unix.Statfs_t
		if unix.Statfs(existing, &at) == nil {
			f.BPFFS = at.Type == unix.BPF_FS_MAGIC
			return
		}
	}
}

func gatherLinks(f *preflight.Facts) {
	links, err := netlink.LinkList()
	if err != nil {
		return
	}
	for _, link := range links {
		f.HasBridge = f.HasBridge || link.Type() == "bridge"
		f.IPVS = f.IPVS || link.Attrs().Name == "kube-ipvs0"
	}
	addrs, err := nodeHost{}.Addresses()
	if err != nil {
		return
	}
	for _, addr := range addrs {
		f.HasIPv6 = f.HasIPv6 || addr.Is6() && addr.IsGlobalUnicast()
	}
}

func gatherOthers(f *preflight.Facts) {
	if others, err := nftables.ListOthers(); err == nil {
		f.Tables, f.NATChains, f.KubeChains = others.Tables, others.NATChains, others.KubeProxyChains
	}
	if text, err := os.ReadFile("/proc/net/ip_tables_names"); err == nil {
		f.LegacyNAT = strings.Contains(string(text), "nat")
	}
	enabled, err := filepath.Glob("/etc/systemd/system/*.wants/nftables.service")
	f.NFTablesService = err == nil && len(enabled) > 0
}

func gatherPorts(ctx context.Context, f *preflight.Facts, cfg config.Config) {
	lock, err := nftables.Lock()
	if err == nil {
		_ = lock.Close()
	} else if errors.Is(err, nftables.ErrRunning) {
		f.Running = err
	}
	f.Ports = map[string]error{}
	for _, address := range []string{cfg.Metrics.Address, cfg.Healthz} {
		if address == "" {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			err = listener.Close()
		}
		if operation, ok := errors.AsType[*net.OpError](err); ok {
			err = operation.Err
		}
		f.Ports[address] = err
	}
}

// askTimeout is for an API server that does not answer.
const askTimeout = 15 * time.Second

// askAPIServer reads all objects once, as run does when it starts.
func askAPIServer(ctx context.Context, cfg config.Config, logger *slog.Logger) *preflight.APIServer {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("no answer within %s", askTimeout))
	defer cancel()
	client, err := connect(cfg.Client)
	if err != nil {
		return &preflight.APIServer{Err: err}
	}
	answer := &preflight.APIServer{}
	quiet := slog.New(slog.DiscardHandler)
	logger.Debug("asking the API server")
	answer.Err = kube.New(kube.Options{Client: client, NodeName: cfg.NodeName, Logger: quiet}).Load(ctx, func(batch source.Batch) {
		for _, change := range batch.Changes {
			switch change.Key.Kind {
			case convert.KindService:
				answer.Services++
			case convert.KindNode:
				answer.HasNode = true
			}
		}
	})
	return answer
}

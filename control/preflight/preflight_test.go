// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package preflight_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/veridict/veridict/control/preflight"
	"github.com/veridict/veridict/dataplane"
)

// fit is a node with nothing in the way.
func fit() preflight.Facts {
	return preflight.Facts{
		Capabilities: []string{"NET_ADMIN", "BPF", "PERFMON"}, Kernel: "6.18.44", NFT: "nftables v1.0.6",
		Rules: map[dataplane.Family]error{dataplane.IPv4: nil, dataplane.IPv6: nil}, ProbeMode: "netfilter",
		PinPath: "/sys/fs/bpf/veridict", BPFFS: true, Connections: 1, MaxConnections: 100,
		Sysctls: map[string]string{
			preflight.SysctlForward4: "1", preflight.SysctlForward6: "1", preflight.SysctlReverse: "2", preflight.SysctlPortRange: "32768\t60999",
		},
		Ports: map[string]error{"127.0.0.1:10249": nil}, NodeName: "n1",
	}
}

func TestFitNode(t *testing.T) {
	t.Parallel()
	facts := fit()
	report := preflight.Run(&facts)
	if report.Failures != 0 || report.Warnings != 0 {
		t.Errorf("%+v", report)
	}
	for _, result := range report.Checks {
		if result.Status != preflight.OK && result.Name != "API server" || result.Hint != "" || result.Detail == "" {
			t.Errorf("%+v", result)
		}
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken: mend it")
	for _, test := range []struct {
		check  string
		change func(*preflight.Facts)
		status preflight.Status
		detail string
	}{
		{"permissions", func(f *preflight.Facts) { f.Capabilities = nil }, preflight.Failure, "CAP_NET_ADMIN is missing"},
		{"permissions", func(f *preflight.Facts) { f.Capabilities = []string{"NET_ADMIN"} }, preflight.Warning, "CAP_BPF and CAP_PERFMON missing"},
		{"permissions", func(f *preflight.Facts) { f.Capabilities, f.ObserveOff = []string{"NET_ADMIN"}, true }, preflight.OK, "all"},
		{"permissions", func(f *preflight.Facts) { f.Capabilities = []string{"NET_ADMIN", "SYS_ADMIN"} }, preflight.OK, "all"},
		{"kernel", func(f *preflight.Facts) { f.Kernel = "5.12.9" }, preflight.Failure, "5.12.9 is too old"},
		{"kernel", func(f *preflight.Facts) { f.Kernel = "5.13.0-rc1" }, preflight.OK, "tracing"},
		{"kernel", func(f *preflight.Facts) { f.Kernel = "x" }, preflight.Warning, "no version"},
		{"nftables", func(f *preflight.Facts) { f.NFTables = broken }, preflight.Failure, "broken"},
		{"rules", func(f *preflight.Facts) { f.NFTables = broken }, preflight.Skipped, "needs nftables"},
		{"rules", func(f *preflight.Facts) { f.Rules[dataplane.IPv6] = broken }, preflight.Warning, "none for IPv6: broken"},
		{"rules", func(f *preflight.Facts) { f.Rules[dataplane.IPv4] = broken }, preflight.Warning, "none for IPv4: broken"},
		{"rules", func(f *preflight.Facts) {
			f.Rules = map[dataplane.Family]error{dataplane.IPv4: broken, dataplane.IPv6: broken}
		}, preflight.Failure, "broken"},
		{"conntrack", func(f *preflight.Facts) { f.MaxConnections = 0 }, preflight.Warning, "tracks no connections"},
		{"conntrack", func(f *preflight.Facts) { f.Connections = 90 }, preflight.Warning, "90 of 100"},
		{"conntrack", func(f *preflight.Facts) { f.Connections = 89 }, preflight.OK, "89 of 100"},
		{"forwarding", func(f *preflight.Facts) { f.Sysctls[preflight.SysctlForward4] = "0" }, preflight.Warning, "IPv4"},
		{"forwarding", func(f *preflight.Facts) { f.Sysctls[preflight.SysctlForward6] = "0" }, preflight.OK, "on"},
		{"forwarding", func(f *preflight.Facts) { f.Sysctls[preflight.SysctlForward6], f.HasIPv6 = "0", true }, preflight.Warning, "IPv6"},
		{"reverse path", func(f *preflight.Facts) { f.Sysctls[preflight.SysctlReverse] = "1" }, preflight.Warning, "strict"},
		{"bridges", func(f *preflight.Facts) { f.HasBridge = true }, preflight.Warning, "pass nftables by"},
		{"bridges", func(f *preflight.Facts) { f.HasBridge, f.Sysctls[preflight.SysctlBridge4] = true, "1" }, preflight.OK, "pass nftables"},
		{"observation", func(f *preflight.Facts) { f.Observation = broken }, preflight.Warning, "broken"},
		{"observation", func(f *preflight.Facts) { f.Observation, f.ObserveRequired = broken, true }, preflight.Failure, "broken"},
		{"observation", func(f *preflight.Facts) { f.ObserveOff = true }, preflight.Skipped, "switched off"},
		{"pins", func(f *preflight.Facts) { f.BPFFS = false }, preflight.Warning, "no BPF file system"},
		{"pins", func(f *preflight.Facts) { f.BPFFS, f.Capabilities = false, append(f.Capabilities, "SYS_ADMIN") }, preflight.OK, "will be mounted"},
		{"pins", func(f *preflight.Facts) { f.PinPath = "" }, preflight.Skipped, "nothing is pinned"},
		{"kube-proxy", func(f *preflight.Facts) { f.Processes = []string{"kube-proxy"} }, preflight.Failure, "runs on this node"},
		{"kube-proxy", func(f *preflight.Facts) { f.Tables = []string{"ip6 kube-proxy", "ip kube-proxy", "ip x"} }, preflight.Warning, "table ip kube-proxy, table ip6 kube-proxy"},
		{"kube-proxy", func(f *preflight.Facts) { f.KubeChains = true }, preflight.Warning, "iptables-nft"},
		{"kube-proxy", func(f *preflight.Facts) { f.IPVS = true }, preflight.Warning, "kube-ipvs0"},
		{"kube-proxy", func(f *preflight.Facts) { f.LegacyNAT = true }, preflight.OK, "iptables-legacy"},
		{"other proxies", func(f *preflight.Facts) { f.Processes = []string{"kube-router"} }, preflight.Warning, "kube-router runs"},
		{"flushers", func(f *preflight.Facts) { f.NFTablesService = true }, preflight.Warning, "nftables.service"},
		{"flushers", func(f *preflight.Facts) { f.Processes = []string{"firewalld"} }, preflight.Warning, "firewalld"},
		{"other NAT", func(f *preflight.Facts) { f.NATChains = []string{"ip nat PREROUTING"} }, preflight.OK, "ip nat PREROUTING"},
		{"veridict", func(f *preflight.Facts) { f.Running = broken }, preflight.OK, "broken"},
		{"ports", func(f *preflight.Facts) { f.Ports["127.0.0.1:10249"] = broken }, preflight.Warning, "127.0.0.1:10249: broken"},
		{"ports", func(f *preflight.Facts) { f.Running = broken }, preflight.Skipped, "has them"},
		{"NodePorts", func(f *preflight.Facts) { f.Sysctls[preflight.SysctlPortRange] = "1024 65535" }, preflight.Warning, "from 1024 on"},
		{"NodePorts", func(f *preflight.Facts) {
			f.Sysctls[preflight.SysctlPortRange], f.Sysctls[preflight.SysctlPortsTaken] = "1024 65535", "8080,30000-32767"
		}, preflight.OK, "reserved"},
		{"NodePorts", func(f *preflight.Facts) { f.Sysctls = nil }, preflight.Skipped, "not known"},
		{"API server", func(f *preflight.Facts) { f.APIServer = &preflight.APIServer{Err: broken} }, preflight.Failure, "broken"},
		{"API server", func(f *preflight.Facts) { f.APIServer = &preflight.APIServer{Services: 3} }, preflight.OK, "3 Services"},
		{"node", func(f *preflight.Facts) { f.APIServer = &preflight.APIServer{} }, preflight.Failure, "no Node n1"},
		{"node", func(f *preflight.Facts) { f.APIServer = &preflight.APIServer{HasNode: true} }, preflight.OK, "n1"},
	} {
		facts := fit()
		test.change(&facts)
		report := preflight.Run(&facts)
		failures, warnings := 0, 0
		for _, result := range report.Checks {
			switch result.Status {
			case preflight.Failure:
				failures++
			case preflight.Warning:
				warnings++
			}
			if result.Name != test.check {
				continue
			}
			if result.Status != test.status || !strings.Contains(result.Detail, test.detail) {
				t.Errorf("%s: %+v, want %s with %q", test.check, result, test.status, test.detail)
			}
			if bad := result.Status == preflight.Failure || result.Status == preflight.Warning; bad != (result.Hint != "") {
				t.Errorf("%s: %s with hint %q", test.check, result.Status, result.Hint)
			}
		}
		if report.Failures != failures || report.Warnings != warnings {
			t.Errorf("%s: counted %d and %d, want %d and %d", test.check, report.Failures, report.Warnings, failures, warnings)
		}
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"slices"
	"strings"
)

func join(texts []string) string {
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

// kubeProxy looks for a running one and for what one has left.
func kubeProxy(f *Facts) Result {
	const name = "kube-proxy"
	if slices.Contains(f.Processes, "kube-proxy") {
		return fail(name, "it runs on this node", "keep it off the node first, see deploy/MIGRATING.md: whoever comes first translates a connection")
	}
	var left []string
	for _, table := range f.Tables {
		if strings.HasSuffix(table, " kube-proxy") {
			left = append(left, "table "+table)
		}
	}
	if f.KubeChains {
		left = append(left, "chains of iptables-nft")
	}
	if len(left) > 0 {
		return warn(name, "it has left "+join(left), "veridict cleanup --kube-proxy, when veridict serves")
	}
	if f.IPVS {
		return warn(name, "it has left the interface kube-ipvs0", "kube-proxy --cleanup, or restart the node")
	}
	if f.LegacyNAT {
		return ok(name, "nothing of it in nftables; there are rules of iptables-legacy, which were not looked at")
	}
	return ok(name, "nothing of it")
}

// otherProxies are programs that may serve Services themselves.
func otherProxies(f *Facts) Result {
	const name = "other proxies"
	hints := map[string]string{
		"cilium-agent": "see that kubeProxyReplacement is false",
		"kube-router":  "see that --run-service-proxy is false",
		"antrea-agent": "see that antreaProxy.proxyAll is false",
	}
	for _, program := range []string{"cilium-agent", "kube-router", "antrea-agent"} {
		if slices.Contains(f.Processes, program) {
			return warn(name, program+" runs", hints[program]+": only one may serve Services")
		}
	}
	return ok(name, "none known")
}

// flushers remove everybody's tables now and then.
func flushers(f *Facts) Result {
	const name = "flushers"
	if f.NFTablesService {
		return warn(name, "nftables.service is enabled: it flushes all tables when it starts",
			"systemctl disable nftables, or have /etc/nftables.conf delete its own tables only; veridict puts its own right in a moment")
	}
	if slices.Contains(f.Processes, "firewalld") {
		return warn(name, "firewalld runs", "see that it lets pods and Services through (the trusted zone); with FlushAllOnReload its reload removes all tables")
	}
	return ok(name, "none known")
}

// otherNAT tells what else translates destinations; it may well be meant to.
func otherNAT(f *Facts) Result {
	const name = "other NAT"
	if len(f.NATChains) == 0 {
		return ok(name, "none")
	}
	return ok(name, "%s; whoever comes first translates a connection", join(slices.Clone(f.NATChains)))
}

// another is about a veridict that runs already.
func another(f *Facts) Result {
	const name = "veridict"
	if f.Running != nil {
		return ok(name, "%s", f.Running)
	}
	return ok(name, "does not run yet")
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"strings"
)

// Settings that are looked at, by their path below /proc/sys.
const (
	SysctlForward4   = "net/ipv4/ip_forward"
	SysctlForward6   = "net/ipv6/conf/all/forwarding"
	SysctlReverse    = "net/ipv4/conf/all/rp_filter"
	SysctlBridge4    = "net/bridge/bridge-nf-call-iptables"
	SysctlPortRange  = "net/ipv4/ip_local_port_range"
	SysctlPortsTaken = "net/ipv4/ip_local_reserved_ports"
)

// Sysctls lists them.
func Sysctls() []string {
	return []string{SysctlForward4, SysctlForward6, SysctlReverse, SysctlBridge4, SysctlPortRange, SysctlPortsTaken}
}

func forwarding(f *Facts) Result {
	const name = "forwarding"
	switch {
	case f.Sysctls[SysctlForward4] == "0":
		return warn(name, "the node does not forward IPv4", "sysctl -w net.ipv4.ip_forward=1, unless the CNI does: pods reach no Service otherwise")
	case f.HasIPv6 && f.Sysctls[SysctlForward6] == "0":
		return warn(name, "the node does not forward IPv6", "sysctl -w net.ipv6.conf.all.forwarding=1, if the cluster has IPv6")
	}
	return ok(name, "on")
}

// reversePath: strict filters drop answers that come back by another interface than
// their connection went by, which a translated destination may bring about.
func reversePath(f *Facts) Result {
	const name = "reverse path"
	if f.Sysctls[SysctlReverse] == "1" {
		return warn(name, "strict filtering is on", "sysctl -w net.ipv4.conf.all.rp_filter=2 if connections to other nodes' endpoints hang")
	}
	return ok(name, "not strict")
}

// bridges: between pods of one bridge answers take a shortcut past connection tracking,
// unless the bridge calls it.
func bridges(f *Facts) Result {
	const name = "bridges"
	switch {
	case !f.HasBridge:
		return ok(name, "none")
	case f.Sysctls[SysctlBridge4] != "1":
		return warn(name, "packets on bridges pass nftables by",
			"modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1, if pods share a bridge")
	}
	return ok(name, "packets pass nftables")
}

// NodePorts that Kubernetes gives out unless told otherwise.
const firstNodePort, lastNodePort = 30000, 32767

// nodePortRange: a connection of the node whose own port is a NodePort keeps a
// healthCheckNodePort from being listened on, and is met by what asks for it.
func nodePortRange(f *Facts) Result {
	const name = "NodePorts"
	var first, last int
	if n, _ := fmt.Sscan(f.Sysctls[SysctlPortRange], &first, &last); n != 2 {
		return skipped(name, "the range of clients' ports is not known")
	}
	if first > lastNodePort || last < firstNodePort {
		return ok(name, "apart from clients' ports, %d to %d", first, last)
	}
	if strings.Contains(f.Sysctls[SysctlPortsTaken], fmt.Sprintf("%d-%d", firstNodePort, lastNodePort)) {
		return ok(name, "reserved among clients' ports")
	}
	return warn(name, fmt.Sprintf("clients of this node get ports from %d on, NodePorts among them", first),
		fmt.Sprintf("sysctl -w net.ipv4.ip_local_reserved_ports=%d-%d", firstNodePort, lastNodePort))
}

func ports(f *Facts) Result {
	const name = "ports"
	if f.Running != nil {
		return skipped(name, "the running veridict has them")
	}
	var taken []string
	for address, err := range f.Ports {
		if err != nil {
			taken = append(taken, address+": "+err.Error())
		}
	}
	if len(taken) > 0 {
		return warn(name, join(taken), "find out who has it with ss -tlnp, often kube-proxy; or give another metricsBindAddress or healthzBindAddress")
	}
	var free []string
	for address := range f.Ports {
		free = append(free, address)
	}
	return ok(name, "free: %s", join(free))
}

func node(f *Facts) Result {
	const name = "node"
	if f.APIServer != nil && f.APIServer.Err == nil && !f.APIServer.HasNode {
		return fail(name, "the API server has no Node "+f.NodeName, "give the name of this node's with --node-name")
	}
	return ok(name, "%s", f.NodeName)
}

func apiServer(f *Facts) Result {
	const name = "API server"
	switch {
	case f.APIServer == nil:
		return skipped(name, "neither --kubeconfig nor --master is given")
	case f.APIServer.Err != nil:
		return fail(name, f.APIServer.Err.Error(), "veridict needs to list and watch Services, EndpointSlices, Nodes and ServiceCIDRs")
	}
	return ok(name, "%d Services", f.APIServer.Services)
}

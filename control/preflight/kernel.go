// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/veridict/veridict/dataplane"
)

// permissions looks for the capabilities that the process uses.
func permissions(f *Facts) Result {
	const name = "permissions"
	if !slices.Contains(f.Capabilities, "NET_ADMIN") {
		return fail(name, "CAP_NET_ADMIN is missing", "run as root, or add the capability: nftables and connection tracking need it")
	}
	var missing []string
	for _, capability := range []string{"BPF", "PERFMON"} {
		if !slices.Contains(f.Capabilities, capability) && !slices.Contains(f.Capabilities, "SYS_ADMIN") {
			missing = append(missing, "CAP_"+capability)
		}
	}
	if len(missing) > 0 && !f.ObserveOff {
		return warn(name, strings.Join(missing, " and ")+" missing", "add them to observe the kernel, or give --observe off")
	}
	return ok(name, "all that are needed")
}

// version returns the first two numbers of a kernel release.
func version(release string) (major, minor int, found bool) {
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, n == 2
}

// Kernels from which on something is there.
const (
	leastMajor, leastMinor         = 5, 13
	netfilterMajor, netfilterMinor = 6, 4
)

// kernelVersion has kube-proxy's least kernel (pkg/proxy/nftables, Kubernetes 1.37).
func kernelVersion(f *Facts) Result {
	const name = "kernel"
	major, minor, found := version(f.Kernel)
	before := func(otherMajor, otherMinor int) bool {
		return major < otherMajor || major == otherMajor && minor < otherMinor
	}
	switch {
	case !found:
		return warn(name, fmt.Sprintf("%q is no version", f.Kernel), fmt.Sprintf("see that it is %d.%d or newer", leastMajor, leastMinor))
	case before(leastMajor, leastMinor):
		return fail(name, f.Kernel+" is too old", fmt.Sprintf("use %d.%d or newer", leastMajor, leastMinor))
	case before(netfilterMajor, netfilterMinor):
		return ok(name, "%s; observing it takes tracing programs, from %d.%d on cheaper ones", f.Kernel, netfilterMajor, netfilterMinor)
	}
	return ok(name, "%s", f.Kernel)
}

// nftablesUsable passes on what says itself what to do.
func nftablesUsable(f *Facts) Result {
	const name = "nftables"
	if f.NFTables != nil {
		detail, hint, _ := strings.Cut(f.NFTables.Error(), ": ")
		return fail(name, detail, hint)
	}
	return ok(name, "%s", f.NFT)
}

// rulesLoad is about a dry run of all kinds of rules.
func rulesLoad(f *Facts) Result {
	const name = "rules"
	if f.NFTables != nil {
		return skipped(name, "needs nftables")
	}
	var taken []string
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		if err := f.Rules[family]; err != nil {
			continue
		}
		taken = append(taken, family.String())
	}
	err4, err6 := f.Rules[dataplane.IPv4], f.Rules[dataplane.IPv6]
	switch {
	case len(taken) == 0:
		return fail(name, err4.Error(), "load the modules nft_chain_nat, nft_nat, nft_masq, nft_reject, nft_numgen and nft_ct, or use a kernel that has them")
	case err4 != nil:
		return warn(name, "none for IPv4: "+err4.Error(), "Services of that family will not be served")
	case err6 != nil:
		return warn(name, "none for IPv6: "+err6.Error(), "Services of that family will not be served")
	}
	return ok(name, "a dry run for %s", strings.Join(taken, " and "))
}

// fullPercent is where the table of connections is nearly full.
const fullPercent = 90

func connectionTracking(f *Facts) Result {
	const name = "conntrack"
	switch {
	case f.MaxConnections == 0:
		return warn(name, "the kernel tracks no connections yet", "nothing, if it can load nf_conntrack: modprobe nf_conntrack")
	case f.Connections*100 >= f.MaxConnections*fullPercent:
		return warn(name, fmt.Sprintf("%d of %d connections are in use", f.Connections, f.MaxConnections),
			"raise conntrack.maxPerCore or conntrack.min: new connections are dropped when the table is full")
	}
	return ok(name, "%d of %d connections", f.Connections, f.MaxConnections)
}

// observation is about loading the BPF programs, which was tried.
func observation(f *Facts) Result {
	const name = "observation"
	switch {
	case f.ObserveOff:
		return skipped(name, "switched off")
	case f.Observation != nil && f.ObserveRequired:
		return fail(name, f.Observation.Error(), "mend it, or give --observe auto: all else works without")
	case f.Observation != nil:
		return warn(name, f.Observation.Error(), "all else works without; docs/verification.md says what is needed")
	}
	return ok(name, "BPF programs load, by %s", f.ProbeMode)
}

func pins(f *Facts) Result {
	const name = "pins"
	switch {
	case f.ObserveOff || f.PinPath == "":
		return skipped(name, "nothing is pinned here")
	case !f.BPFFS && !slices.Contains(f.Capabilities, "SYS_ADMIN"):
		return warn(name, "no BPF file system is at "+f.PinPath, "mount -t bpf bpf /sys/fs/bpf: otherwise counters end with the process")
	case !f.BPFFS:
		return ok(name, "%s; the BPF file system will be mounted", f.PinPath)
	}
	return ok(name, "%s", f.PinPath)
}

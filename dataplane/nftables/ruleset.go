// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// setKind says what a set maps its keys to.
type setKind uint8

const (
	plainSet setKind = iota
	dataMap
	verdictMap
)

// setDecl declares a set or map. Exactly one of typ and typeOf is set: a plain
// key or a verdict declared by type makes nft 1.0.6 crash when nft 1.1.7 wrote
// it.
type setDecl struct {
	name   string
	kind   setKind
	typ    string
	typeOf string
}

// chainDecl is a chain with its rules. Base chains have a type, hook and
// priority.
type chainDecl struct {
	name  string
	base  *baseChain
	rules []string
}

// baseChain is where a chain hangs. Its policy is accept.
type baseChain struct {
	typ      knftables.BaseChainType
	hook     knftables.BaseChainHook
	priority int
}

// ruleset is the structure of one table, without dispatch chains and elements.
type ruleset struct {
	family family
	sets   []setDecl
	// chains stand in an order in which each is declared before a rule goes
	// to it.
	chains []chainDecl
}

// lookUpOnce leaves out the second lookup of VIPs. Where it is not needed it is
// worth leaving out: the kernel follows all elements of a verdict map for every
// rule that looks into it, whenever a verdict changes.
func (r *ruleset) lookUpOnce() {
	services := r.chain(servicesChain)
	services.rules = services.rules[:1]
}

func (r *ruleset) set(name string) *setDecl {
	for i := range r.sets {
		if r.sets[i].name == name {
			return &r.sets[i]
		}
	}
	return nil
}

func (r *ruleset) chain(name string) *chainDecl {
	for i := range r.chains {
		if r.chains[i].name == name {
			return &r.chains[i]
		}
	}
	return nil
}

// accepts says whether the kernel's set can serve as the set of that name.
func (r *ruleset) accepts(found setInfo) bool {
	set := r.set(found.name)
	return set == nil || (set.kind == found.kind && r.shape(set) == found.shape && !found.special)
}

// acceptsChain says whether the kernel's chain hangs where the chain of that name
// should, and lets through what its rules say nothing about. Regular chains hang
// nowhere.
func (r *ruleset) acceptsChain(found chainInfo) bool {
	switch chain := r.chain(found.name); {
	case chain != nil && chain.base != nil:
		return found.base != nil && *chain.base == *found.base && !found.drops
	case chain != nil || isDispatch(found.name):
		return found.base == nil
	default:
		return true
	}
}

// replaceable says whether a chain that is not accepted can be replaced alone:
// other rules lead to regular chains, but none to base chains.
func (r *ruleset) replaceable(found chainInfo) bool {
	chain := r.chain(found.name)
	return chain != nil && chain.base != nil
}

// shape returns the lengths of the set's keys and values in the kernel.
func (r *ruleset) shape(set *setDecl) setShape {
	// Addresses and words of four bytes; protocols, ports, buckets and marks
	// take one word each.
	const word = 4
	addr := uint32(r.family.addrLen)
	switch set.name {
	case clusterIPs:
		return setShape{key: addr}
	case serviceIPs, noEndpointServices:
		return setShape{key: addr + 2*word}
	case hairpinConnections:
		return setShape{key: 2*addr + 2*word}
	case markedEndpoints:
		return setShape{key: addr + 3*word, data: addr + word}
	default:
		return setShape{key: addr + 2*word, data: addr + word}
	}
}

// priorities of the base chains: those of dstnat, filter and srcnat. nft knows
// dstnat for prerouting only, so they stand as numbers.
const (
	dstNAT = -100
	filter = 0
	srcNAT = 100
)

// newRuleset returns the structure of the table of family f.
func newRuleset(f family, layout Layout, settings *dataplane.Settings) ruleset {
	vip := f.ip + " daddr . meta l4proto . th dport"
	lookUpVIP := vip + " vmap @" + serviceIPs
	return ruleset{
		family: f,
		sets: append([]setDecl{
			{name: serviceIPs, kind: verdictMap, typeOf: vip + " : verdict"},
			{name: noEndpointServices, kind: verdictMap, typeOf: vip + " : verdict"},
			{name: clusterIPs, typeOf: f.ip + " daddr"},
			{name: hairpinConnections, typeOf: fmt.Sprintf("%[1]s saddr . %[1]s daddr . meta l4proto . th dport", f.ip)},
		}, layout.endpointsMaps(f)...),
		chains: append([]chainDecl{
			{name: missedChain, rules: append([]string{"counter"}, layout.dispatch(f, 1)...)},
			// Some kernels miss an element that a commit is just replacing; see
			// repeatsLookups. The second lookup then finds the new one.
			{name: servicesChain, rules: []string{lookUpVIP, lookUpVIP}},
			{name: rejectChain, rules: []string{"reject"}},
			{name: endpointsCheckChain, rules: []string{vip + " vmap @" + noEndpointServices}},
			{name: "cluster-ips-check", rules: clusterIPsCheck(f, settings.ServiceCIDRs)},
			{name: "masquerade-cluster-ips", rules: masqueradeClusterIPs(f, settings)},
			{name: "masquerading", rules: []string{
				fmt.Sprintf("%[1]s saddr . %[1]s daddr . meta l4proto . th dport @%[2]s masquerade fully-random", f.ip, hairpinConnections),
				fmt.Sprintf("ct original %s daddr @%s goto masquerade-cluster-ips", f.ip, clusterIPs),
			}},
		}, baseChains()...),
	}
}

// baseChains are the ways into the table. Only first packets matter: NAT chains
// see no others, the filter chains look at ct state.
func baseChains() []chainDecl {
	base := func(name string, typ knftables.BaseChainType, hook knftables.BaseChainHook, priority int, rules ...string) chainDecl {
		return chainDecl{name: name, base: &baseChain{typ, hook, priority}, rules: rules}
	}
	checkEndpoints := "ct state new jump " + endpointsCheckChain
	checkClusterIPs := "ct state new jump cluster-ips-check"
	return []chainDecl{
		base("nat-prerouting", knftables.NATType, knftables.PreroutingHook, dstNAT, "jump "+servicesChain),
		base("nat-output", knftables.NATType, knftables.OutputHook, dstNAT, "jump "+servicesChain),
		base("filter-input", knftables.FilterType, knftables.InputHook, filter, checkEndpoints),
		base("filter-forward", knftables.FilterType, knftables.ForwardHook, filter, checkEndpoints, checkClusterIPs),
		base("filter-output", knftables.FilterType, knftables.OutputHook, filter, checkEndpoints, checkClusterIPs),
		// Somebody else's DNAT, a CNI's hostPort for example, is not looked
		// at further: its original destination is no cluster IP.
		base("nat-postrouting", knftables.NATType, knftables.PostroutingHook, srcNAT, "ct status dnat jump masquerading"),
	}
}

// clusterIPsCheck refuses what no verdict was found for: a port that the
// cluster IP does not have, and an address that no Service has.
func clusterIPsCheck(f family, cidrs []netip.Prefix) []string {
	rules := []string{fmt.Sprintf("%s daddr @%s reject", f.ip, clusterIPs)}
	for _, cidr := range cidrs {
		if dataplane.FamilyOf(cidr.Addr()) == f.id {
			rules = append(rules, fmt.Sprintf("%s daddr %s drop", f.ip, cidr.Masked()))
		}
	}
	return rules
}

// masqueradeClusterIPs decides by where a connection to a cluster IP comes from.
func masqueradeClusterIPs(f family, settings *dataplane.Settings) []string {
	const masquerade = "masquerade fully-random"
	if settings.MasqueradeAll {
		return []string{masquerade}
	}
	detector := settings.LocalDetector
	switch {
	case detector.Interface != "":
		return []string{fmt.Sprintf("iifname != %q %s", detector.Interface, masquerade)}
	case detector.InterfacePrefix != "":
		return []string{fmt.Sprintf("iifname != %q %s", detector.InterfacePrefix+"*", masquerade)}
	}
	for _, cidr := range detector.CIDRs {
		if dataplane.FamilyOf(cidr.Addr()) == f.id {
			return []string{fmt.Sprintf("%s saddr != %s %s", f.ip, cidr.Masked(), masquerade)}
		}
	}
	return nil
}

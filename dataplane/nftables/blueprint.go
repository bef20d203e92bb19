// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// blueprint is what the structure of a table is made from.
type blueprint struct {
	family   family
	layout   Layout
	settings *dataplane.Settings
	// maxPins is the size of each map of pins.
	maxPins int
	// repeatLookups looks twice for verdicts that commits replace: some kernels
	// miss them meanwhile, see repeatsLookups. Where it is not needed it is worth
	// leaving out: the kernel follows all elements of a verdict map for every
	// rule that looks into it, whenever a verdict changes.
	repeatLookups bool
}

// maxNodeAddresses is the number of addresses of the node that can be learned.
const maxNodeAddresses = 65535

// ruleset returns the structure.
func (b *blueprint) ruleset() ruleset {
	return ruleset{family: b.family, sets: b.sets(), chains: slices.Concat(b.missed(), b.dispatching(), b.pinning(),
		b.masquerading(), b.filtering(), b.baseChains())}
}

// key returns the words for the key of VIPs, or of NodePorts, before translation.
func (b *blueprint) key(nodePort bool) string {
	if nodePort {
		return "meta l4proto . th dport"
	}
	return b.family.ip + " daddr . meta l4proto . th dport"
}

// eachOriginal returns a rule for each protocol that looks up the destination that
// the client has connected to: nft 1.0.6 must know the protocol of a port of
// conntrack. then goes on behind the key.
func (b *blueprint) eachOriginal(nodePort bool, then string) []string {
	key := "meta l4proto . ct original proto-dst"
	if !nodePort {
		key = fmt.Sprintf("ct original %s daddr . %s", b.family.ip, key)
	}
	var rules []string
	for _, p := range dataplane.Protocols() {
		rules = append(rules, fmt.Sprintf("meta l4proto %s %s %s", p, key, then))
	}
	return rules
}

func (b *blueprint) sets() []setDecl {
	f := b.family
	vip := b.key(false)
	var sets []setDecl
	for _, name := range []string{serviceMap, affinityMaps, localMap, affinityLocalMap, pinMap, pinLocalMap, noEndpointMap} {
		for _, nodePort := range []bool{false, true} {
			sets = append(sets, setDecl{name: byKey(name, nodePort), kind: verdictMap, typeOf: b.key(nodePort) + " : verdict"})
		}
	}
	for _, name := range []string{externalLocalSet, masqueradeSet} {
		for _, nodePort := range []bool{false, true} {
			sets = append(sets, setDecl{name: byKey(name, nodePort), typeOf: b.key(nodePort)})
		}
	}
	sets = append(
		sets,
		setDecl{name: clusterIPs, typeOf: f.ip + " daddr"},
		setDecl{name: nodePortIPs, typeOf: f.ip + " daddr"},
		setDecl{name: learnedNodePortIPs, typeOf: f.ip + " daddr", learns: true, size: maxNodeAddresses},
		setDecl{name: hairpinConnections, typeOf: fmt.Sprintf("%[1]s saddr . %[1]s daddr . meta l4proto . th dport", f.ip)},
		setDecl{name: firewallIPs, typeOf: vip},
	)
	for _, p := range dataplane.Protocols() {
		sets = append(sets, setDecl{
			name: sourceRanges + p.String(), typeOf: fmt.Sprintf("%[1]s daddr . %[2]s dport . %[1]s saddr", f.ip, p), ranges: true,
		})
	}
	return slices.Concat(sets, b.layout.rowsMaps(f), pinMaps(f, b.maxPins))
}

// missed are the chains of lookups that have found no row.
func (b *blueprint) missed() []chainDecl {
	var chains []chainDecl
	for _, nodePort := range []bool{false, true} {
		for s := range scopes {
			chains = append(chains, missedChainDecl(b.family, b.layout, nodePort, s))
		}
	}
	return chains
}

// isPod returns the match of packets from a pod of this node, empty if there is no
// way to tell.
func (b *blueprint) isPod() string {
	detector := &b.settings.LocalDetector
	switch {
	case detector.Interface != "":
		return fmt.Sprintf("iifname %q", detector.Interface)
	case detector.InterfacePrefix != "":
		return fmt.Sprintf("iifname %q", detector.InterfacePrefix+"*")
	}
	for _, cidr := range detector.CIDRs {
		if dataplane.FamilyOf(cidr.Addr()) == b.family.id {
			return fmt.Sprintf("%s saddr %s", b.family.ip, cidr.Masked())
		}
	}
	return ""
}

// fromOutside returns rules behind which there are only packets that neither a pod
// of this node nor the node itself has sent.
func (b *blueprint) fromOutside() []string {
	rules := []string{"fib saddr type local return"}
	if pod := b.isPod(); pod != "" {
		rules = append([]string{pod + " return"}, rules...)
	}
	return rules
}

// takesNodePorts returns the match of packets to an address of this node that takes
// NodePorts.
func (b *blueprint) takesNodePorts() string {
	if b.allAddresses() {
		return fmt.Sprintf("fib daddr type local %s daddr != %s", b.family.ip, b.family.loopback)
	}
	return fmt.Sprintf("%s daddr @%s", b.family.ip, nodePortIPs)
}

func (b *blueprint) allAddresses() bool {
	return slices.Contains(b.settings.AllAddresses, b.family.id)
}

// originalTakesNodePorts is takesNodePorts for a packet that has been translated.
// The routing table cannot be asked about an address that the packet does not have
// any more.
func (b *blueprint) originalTakesNodePorts() string {
	set := nodePortIPs
	if b.allAddresses() {
		set = learnedNodePortIPs
	}
	return fmt.Sprintf("ct original %s daddr @%s", b.family.ip, set)
}

// learnNodePorts is takesNodePorts, and remembers the address.
func (b *blueprint) learnNodePorts() string {
	match := b.takesNodePorts()
	if b.allAddresses() {
		match += fmt.Sprintf(" update @%s { %s daddr timeout 1h }", learnedNodePortIPs, b.family.ip)
	}
	return match
}

// lookUpVerdict returns the rules that look for what is replaced in use.
func (b *blueprint) lookUpVerdict(nodePort bool, name string) []string {
	rule := b.key(nodePort) + " vmap @" + byKey(name, nodePort)
	if b.repeatLookups {
		return []string{rule, rule}
	}
	return []string{rule}
}

// dispatching are the chains that a new connection passes on its way to an
// endpoint.
func (b *blueprint) dispatching() []chainDecl {
	var chains []chainDecl
	for _, nodePort := range []bool{true, false} {
		key := b.key(nodePort)
		outside, inside := externalLocalChain(nodePort), servicesChain
		if nodePort {
			inside = "nodeports"
		}
		chains = append(
			chains,
			// Policy Local without a local endpoint: what is not translated is
			// dropped by the filter chains.
			chainDecl{name: outside, rules: slices.Concat(
				b.fromOutside(),
				[]string{key + " vmap @" + byKey(affinityLocalMap, nodePort)},
				b.lookUpVerdict(nodePort, localMap),
				[]string{"accept"},
			)},
			chainDecl{name: inside, rules: slices.Concat(
				[]string{
					fmt.Sprintf("%s @%s jump %s", key, byKey(externalLocalSet, nodePort), outside),
					key + " vmap @" + byKey(affinityMaps, nodePort),
				},
				b.lookUpVerdict(nodePort, serviceMap),
			)},
		)
	}
	services := &chains[len(chains)-1]
	services.rules = append(services.rules, b.learnNodePorts()+" goto nodeports")
	return append([]chainDecl{b.affinity()}, chains...)
}

// externalLocalChain is where connections to frontends of policy Local go first.
func externalLocalChain(nodePort bool) string {
	if nodePort {
		return nodePortPrefix + "external-local"
	}
	return "external-local"
}

// affinity takes clients to their pins, and returns those that have none.
func (b *blueprint) affinity() chainDecl {
	chain := chainDecl{name: affinityChain}
	for _, p := range dataplane.Protocols() {
		chain.rules = append(chain.rules, fmt.Sprintf(
			"meta l4proto %[1]s dnat %[2]s addr . port to %[2]s saddr . %[2]s daddr . %[1]s dport map @%[3]s",
			p, b.family.ip, affinityMap(p)))
	}
	return chain
}

// pinning are the chains that choose who writes the pin. They take the same turns
// as dispatching.
func (b *blueprint) pinning() []chainDecl {
	chains := []chainDecl{{name: unpinnedChain, rules: []string{"counter accept"}}}
	for _, nodePort := range []bool{true, false} {
		outside, inside := externalLocalChain(nodePort)+"-pins", "pins"
		if nodePort {
			inside = nodePortPrefix + inside
		}
		chains = append(
			chains,
			chainDecl{name: outside, rules: slices.Concat(
				b.fromOutside(), b.eachOriginal(nodePort, "vmap @"+byKey(pinLocalMap, nodePort)), []string{"accept"},
			)},
			chainDecl{name: inside, rules: slices.Concat(
				b.eachOriginal(nodePort, "@"+byKey(externalLocalSet, nodePort)+" jump "+outside),
				b.eachOriginal(nodePort, "vmap @"+byKey(pinMap, nodePort)),
			)},
		)
	}
	pins := &chains[len(chains)-1]
	pins.rules = append(pins.rules, b.originalTakesNodePorts()+" goto nodeport-pins")
	return chains
}

const masquerade = "masquerade fully-random"

// masquerading are the chains that decide by where a translated connection was
// sent to. The first kind of frontend that knows the destination decides.
func (b *blueprint) masquerading() []chainDecl {
	f := b.family
	byFrontend := func(nodePort bool) []string {
		return slices.Concat(
			b.eachOriginal(nodePort, "@"+byKey(masqueradeSet, nodePort)+" "+masquerade),
			b.eachOriginal(nodePort, "@"+byKey(externalLocalSet, nodePort)+" goto masquerade-short-circuit"),
		)
	}
	var shortCircuit []string
	if pod := b.isPod(); pod != "" {
		shortCircuit = append(shortCircuit, pod+" return")
	}
	return []chainDecl{
		{name: "masquerade-cluster-ips", rules: b.masqueradeClusterIPs()},
		{name: "masquerade-short-circuit", rules: append(shortCircuit, "fib saddr type local "+masquerade)},
		{name: "nodeport-masquerading", rules: byFrontend(true)},
		{name: "masquerading", rules: slices.Concat(
			[]string{
				fmt.Sprintf("%[1]s saddr . %[1]s daddr . meta l4proto . th dport @%[2]s %[3]s", f.ip, hairpinConnections, masquerade),
				fmt.Sprintf("ct original %s daddr @%s goto masquerade-cluster-ips", f.ip, clusterIPs),
			},
			byFrontend(false),
			[]string{b.originalTakesNodePorts() + " goto nodeport-masquerading"},
		)},
	}
}

// masqueradeClusterIPs decides by where a connection to a cluster IP comes from.
func (b *blueprint) masqueradeClusterIPs() []string {
	if b.settings.MasqueradeAll {
		return []string{masquerade}
	}
	detector := &b.settings.LocalDetector
	switch {
	case detector.Interface != "":
		return []string{fmt.Sprintf("iifname != %q %s", detector.Interface, masquerade)}
	case detector.InterfacePrefix != "":
		return []string{fmt.Sprintf("iifname != %q %s", detector.InterfacePrefix+"*", masquerade)}
	}
	for _, cidr := range detector.CIDRs {
		if dataplane.FamilyOf(cidr.Addr()) == b.family.id {
			return []string{fmt.Sprintf("%s saddr != %s %s", b.family.ip, cidr.Masked(), masquerade)}
		}
	}
	return nil
}

// filtering are the chains that refuse connections.
func (b *blueprint) filtering() []chainDecl {
	vip := b.key(false)
	return []chainDecl{
		{name: rejectChain, rules: []string{"reject"}},
		{name: "reject-localhost", rules: b.rejectLocalhost()},
		{name: "firewall", rules: b.firewall()},
		{name: "endpoints-check", rules: []string{vip + " vmap @" + byKey(noEndpointMap, false)}},
		{name: "nodeport-endpoints-check", rules: b.nodePortEndpointsCheck()},
		{name: "cluster-ips-check", rules: b.clusterIPsCheck()},
	}
}

// firewall drops who may not connect to a load balancer's address.
func (b *blueprint) firewall() []string {
	var rules []string
	for _, p := range dataplane.Protocols() {
		rules = append(rules, fmt.Sprintf("meta l4proto %[1]s %[2]s @%[3]s %[4]s daddr . %[1]s dport . %[4]s saddr != @%[5]s%[1]s drop",
			p, b.key(false), firewallIPs, b.family.ip, sourceRanges))
	}
	return rules
}

func (b *blueprint) rejectLocalhost() []string {
	var rules []string
	for _, p := range dataplane.Protocols() {
		rules = append(rules, fmt.Sprintf("meta l4proto %s counter reject", p))
	}
	return rules
}

// nodePortEndpointsCheck refuses what is for a NodePort and was not translated.
// Each NodePort is in one of the two sets.
func (b *blueprint) nodePortEndpointsCheck() []string {
	key := b.key(true)
	rules := []string{fmt.Sprintf("%s %s vmap @%s", b.takesNodePorts(), key, byKey(noEndpointMap, true))}
	proxied := ""
	switch b.settings.Localhost {
	case dataplane.LocalhostProxied:
		proxied = "meta l4proto != tcp "
	case dataplane.LocalhostRejected:
	default:
		return rules
	}
	for _, set := range []string{masqueradeSet, externalLocalSet} {
		rules = append(rules, fmt.Sprintf("%s daddr %s %s%s @%s goto reject-localhost",
			b.family.ip, b.family.loopback, proxied, key, byKey(set, true)))
	}
	return rules
}

// clusterIPsCheck refuses what no verdict was found for: a port that the
// cluster IP does not have, and an address that no Service has.
func (b *blueprint) clusterIPsCheck() []string {
	ip := b.family.ip
	rules := []string{fmt.Sprintf("%s daddr @%s reject", ip, clusterIPs)}
	for _, cidr := range b.settings.ServiceCIDRs {
		if dataplane.FamilyOf(cidr.Addr()) == b.family.id {
			rules = append(rules, fmt.Sprintf("%s daddr %s drop", ip, cidr.Masked()))
		}
	}
	return rules
}

// Priorities of the base chains. nft knows dstnat for prerouting only, so they
// stand as numbers.
const (
	// firewallPriority is before anybody's translation.
	firewallPriority = -110
	dstNAT           = -100
	filter           = 0
	// pinPriority is before anybody's masquerading, which would end the
	// kernel's pass over NAT chains.
	pinPriority = 90
	srcNAT      = 100
)

// baseChains are the ways into the table. Only first packets matter: NAT chains
// see no others, the filter chains look at ct state. Pins are written in NAT chains
// for that reason, too: a packet that is sent again to an endpoint that is gone
// would bring its pin back.
func (b *blueprint) baseChains() []chainDecl {
	base := func(name string, typ knftables.BaseChainType, hook knftables.BaseChainHook, priority int, rules ...string) chainDecl {
		return chainDecl{name: name, base: &baseChain{typ, hook, priority}, rules: rules}
	}
	const (
		jumpFirewall    = "ct state new jump firewall"
		checkEndpoints  = "ct state new jump endpoints-check"
		checkNodePorts  = "ct state new jump nodeport-endpoints-check"
		checkClusterIPs = "ct state new jump cluster-ips-check"
		jumpPins        = "ct status dnat jump pins"
	)
	return []chainDecl{
		base("firewall-prerouting", knftables.FilterType, knftables.PreroutingHook, firewallPriority, jumpFirewall),
		base("firewall-output", knftables.FilterType, knftables.OutputHook, firewallPriority, jumpFirewall),
		base("nat-prerouting", knftables.NATType, knftables.PreroutingHook, dstNAT, "jump "+servicesChain),
		base("nat-output", knftables.NATType, knftables.OutputHook, dstNAT, "jump "+servicesChain),
		base("filter-input", knftables.FilterType, knftables.InputHook, filter, checkNodePorts, checkEndpoints),
		base("filter-forward", knftables.FilterType, knftables.ForwardHook, filter, checkEndpoints, checkClusterIPs),
		base("filter-output", knftables.FilterType, knftables.OutputHook, filter, checkEndpoints, checkClusterIPs),
		base("pins-postrouting", knftables.NATType, knftables.PostroutingHook, pinPriority, jumpPins),
		base("pins-input", knftables.NATType, knftables.InputHook, pinPriority, jumpPins),
		// Somebody else's DNAT, a CNI's hostPort for example, is not looked
		// at further: its original destination is in none of our sets.
		base("nat-postrouting", knftables.NATType, knftables.PostroutingHook, srcNAT, "ct status dnat jump masquerading"),
	}
}

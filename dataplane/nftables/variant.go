// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/veridict/veridict/dataplane"
)

// scope says which endpoints of a ServicePort a lookup draws from.
type scope uint8

const (
	// clusterScope are all that may be used.
	clusterScope scope = iota
	// localScope are those of this node.
	localScope
	scopes
)

// localOffset is the first bucket of the local scope, and what is added to an
// affinity id in it.
const localOffset = dataplane.MaxBuckets + 1

// offset returns what is added to a bucket or an id of the scope.
func (s scope) offset() uint32 { return uint32(s) * localOffset }

// variant names a chain of which there can be many. Its rules follow from the
// variant alone, so that the name tells what a chain does, and a change is another
// chain and not another rule.
type variant struct {
	kind variantKind
	// nodePort and algorithm are set for dispatch chains only.
	nodePort  bool
	algorithm dataplane.Algorithm
	scope     scope
	// protocol is set together with an affinity id.
	protocol dataplane.Protocol
	// n is the number of buckets of a dispatch chain, and otherwise the
	// affinity id of a ServicePort with several frontends. The id is 0 for the
	// pins of ServicePorts with a single one.
	n uint32
	// seconds is how long a pin stays.
	seconds uint32
}

type variantKind uint8

const (
	// dispatchVariant draws one of n buckets.
	dispatchVariant variantKind = iota + 1
	// affinityVariant takes a client to its pin, if it has one.
	affinityVariant
	// pinVariant writes the pin of a new connection.
	pinVariant
)

// Parts of names.
const (
	clusterPrefix  = "cluster-"
	localPrefix    = "local-"
	nodePortPrefix = "nodeport-"
	hashPrefix     = "hash-"
	affinityPrefix = "affinity-"
	pinPrefix      = "pin-"
)

// name returns the name of the chain.
func (v variant) name() string {
	number := strconv.FormatUint(uint64(v.n), 10)
	local := ""
	if v.scope == localScope {
		local = localPrefix
	}
	switch v.kind {
	case affinityVariant:
		return affinityPrefix + local + v.protocol.String() + "-" + number
	case pinVariant:
		id := ""
		if v.n > 0 {
			id = local + v.protocol.String() + "-" + number + "-"
		}
		return pinPrefix + id + strconv.FormatUint(uint64(v.seconds), 10) + "s"
	default:
		return v.dispatchPrefix() + number
	}
}

func (v variant) dispatchPrefix() string {
	prefix := ""
	if v.nodePort {
		prefix = nodePortPrefix
	}
	switch {
	case v.scope == localScope:
		prefix += localPrefix
	case !v.nodePort:
		prefix += clusterPrefix
	}
	if v.algorithm == dataplane.SourceHash {
		prefix += hashPrefix
	}
	return prefix
}

// parseVariant is the reverse of name.
func parseVariant(name string) (variant, bool) {
	v := variant{}
	rest := name
	take := func(prefix string) bool {
		after, ok := strings.CutPrefix(rest, prefix)
		if ok {
			rest = after
		}
		return ok
	}
	takeProtocol := func() {
		for _, p := range dataplane.Protocols() {
			if take(p.String() + "-") {
				v.protocol = p
			}
		}
	}
	takeScope := func() {
		if take(localPrefix) {
			v.scope = localScope
		}
	}
	number := &v.n
	switch {
	case take(affinityPrefix):
		v.kind = affinityVariant
		takeScope()
		takeProtocol()
	case take(pinPrefix):
		v.kind = pinVariant
		takeScope()
		takeProtocol()
		id, seconds, found := strings.Cut(strings.TrimSuffix(rest, "s"), "-")
		if found {
			v.n = parseNumber(id)
			id = seconds
		}
		rest, number = id, &v.seconds
	default:
		v.kind = dispatchVariant
		v.nodePort = take(nodePortPrefix)
		takeScope()
		if v.scope == clusterScope && !v.nodePort && !take(clusterPrefix) {
			return variant{}, false
		}
		if take(hashPrefix) {
			v.algorithm = dataplane.SourceHash
		}
	}
	*number = parseNumber(rest)
	if *number == 0 || v.name() != name {
		return variant{}, false
	}
	return v, true
}

// parseNumber returns 0 for what is no number.
func parseNumber(digits string) uint32 {
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func isVariant(chain string) bool {
	_, ok := parseVariant(chain)
	return ok
}

// id returns the affinity id that the chain is about, 0 if it is about none.
func (v variant) id() uint32 {
	if v.kind == dispatchVariant {
		return 0
	}
	return v.n
}

// chain returns the chain with its rules.
func (v variant) chain(f family, layout Layout) chainDecl {
	switch v.kind {
	case affinityVariant:
		return chainDecl{name: v.name(), rules: []string{fmt.Sprintf(
			"meta l4proto %[1]s dnat %[2]s addr . port to %[2]s saddr . %[3]s map @%[4]s",
			v.protocol, f.ip, v.idField(), affinityIDMap(v.protocol))}}
	case pinVariant:
		return v.pinChain(f)
	default:
		// A row that is not there would let the packet go untranslated: missed
		// takes bucket 0 instead, and counts.
		return chainDecl{name: v.name(), rules: append(v.draws(f, layout), "goto "+v.missedChain())}
	}
}

// idField is a constant: nft has no other word for one inside a key.
func (v variant) idField() string {
	return fmt.Sprintf("numgen inc mod 1 offset %d", v.n+v.scope.offset())
}

// draws returns the rules that draw a bucket and look it up.
func (v variant) draws(f family, layout Layout) []string {
	draw := fmt.Sprintf("numgen random mod %d", v.n)
	if v.algorithm == dataplane.SourceHash {
		draw = fmt.Sprintf("jhash %s saddr mod %d seed %#x", f.ip, v.n, hashSeed)
	}
	if v.scope != clusterScope {
		draw += fmt.Sprintf(" offset %d", v.scope.offset())
	}
	var rules []string
	for _, p := range dataplane.Protocols() {
		mark, key := "", p.String()+" dport . "+draw
		if layout == CTMark {
			mark, key = "ct mark set "+draw+" ", "meta l4proto . th dport . ct mark"
		}
		if !v.nodePort {
			key = f.ip + " daddr . " + key
		}
		rules = append(rules, fmt.Sprintf("meta l4proto %s %sdnat %s addr . port to %s map @%s",
			p, mark, f.ip, key, layout.rowsMap(v.nodePort, p)))
	}
	return rules
}

// hashSeed is the same on all nodes and for ever: another one would take every
// client to another endpoint.
const hashSeed = 0x76657269

// missedChain is where a lookup goes that has found no row.
func (v variant) missedChain() string {
	return variant{nodePort: v.nodePort, scope: v.scope}.missedPrefix() + missedChain
}

func (v variant) missedPrefix() string {
	return strings.TrimPrefix(v.dispatchPrefix(), clusterPrefix)
}

// missedChainDecl returns the chain that takes bucket 0.
func missedChainDecl(f family, layout Layout, nodePort bool, s scope) chainDecl {
	v := variant{kind: dispatchVariant, nodePort: nodePort, scope: s, n: 1}
	return chainDecl{name: v.missedChain(), rules: append([]string{"counter"}, v.draws(f, layout)...)}
}

// pinChain returns a chain that writes pins. An existing pin is refreshed and keeps
// its endpoint. A rule ends early if the map is full. Otherwise it ends the base
// chain: behind the chain of one scope there is the lookup for the other.
func (v variant) pinChain(f family) chainDecl {
	chain := chainDecl{name: v.name()}
	protocols := dataplane.Protocols()
	if v.n > 0 {
		protocols = []dataplane.Protocol{v.protocol}
	}
	for _, p := range protocols {
		pin := pinRule{protocol: p, seconds: v.seconds}
		if v.n > 0 {
			pin.id = v.n + v.scope.offset()
		}
		chain.rules = append(chain.rules, pin.text(f))
		chain.pins = append(chain.pins, pin)
	}
	chain.rules = append(chain.rules, "goto "+unpinnedChain)
	return chain
}

// pinRule writes the endpoint of a connection into the affinity map of protocol.
type pinRule struct {
	protocol dataplane.Protocol
	// id is the key of a ServicePort with several frontends and its scope, 0 for
	// pins by VIP.
	id      uint32
	seconds uint32
}

func (r pinRule) mapName() string {
	if r.id > 0 {
		return affinityIDMap(r.protocol)
	}
	return affinityMap(r.protocol)
}

// text returns the rule in nft's words.
func (r pinRule) text(f family) string {
	key := fmt.Sprintf("ct original %s daddr . ct original proto-dst", f.ip)
	if r.id > 0 {
		key = fmt.Sprintf("numgen inc mod 1 offset %d", r.id)
	}
	return fmt.Sprintf("meta l4proto %[1]s update @%[2]s { ct original %[3]s saddr . %[4]s timeout %[5]ds : "+
		"ct reply %[3]s saddr . ct reply proto-src } accept", r.protocol, r.mapName(), f.ip, key, r.seconds)
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// Question is a connection that somebody wants to open.
type Question struct {
	Client netip.Addr
	// In is the interface that the first packet comes in by, empty for a connection
	// of the node itself.
	In string
	// To is what the client connects to. Its address is valid.
	To dataplane.VIP
}

// Explanation is what the rules in the kernel do with the first packet of a
// connection.
type Explanation struct {
	// Verdict is "translated", "untranslated", "rejected" or "dropped".
	Verdict string `json:"verdict"`
	// Reason says why, in words.
	Reason string `json:"reason"`
	// Targets are the endpoints that the connection can come to, the likeliest
	// first.
	Targets []Target `json:"endpoints"`
	// Steps are what the rules have looked up and done, for the first of Targets.
	Steps []Step `json:"steps"`
}

// Target is an endpoint that a connection can come to.
type Target struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	// Probability is above 0 and at most 1.
	Probability float64 `json:"probability"`
	// Buckets is the number of buckets that lead to the endpoint, 0 for a pin of
	// session affinity.
	Buckets int `json:"buckets"`
	// Masquerade says that the endpoint sees the node as the client.
	Masquerade bool `json:"masquerade"`
	// Why says why it is or is not so.
	Why string `json:"masqueradeReason"`
}

// Step is one thing that a rule did.
type Step struct {
	Hook  string `json:"hook"`
	Chain string `json:"chain"`
	// Action is "lookup", "draw", "dnat", "masquerade", "pin", "learn", "reject",
	// "drop", "accept", "jump" or "goto".
	Action string `json:"action"`
	// Set and Element are what a lookup has found, in nft's words.
	Set     string `json:"set,omitempty"`
	Element string `json:"element,omitempty"`
	// Detail is more, in words.
	Detail string `json:"detail,omitempty"`
}

// Locator knows where addresses are.
type Locator interface {
	// IsLocal says whether an address is the node's own.
	IsLocal(netip.Addr) (bool, error)
}

// cachedLocator asks about each address once: every bucket asks again.
type cachedLocator struct {
	from  Locator
	known map[netip.Addr]bool
}

// IsLocal is part of Locator.
func (c cachedLocator) IsLocal(addr netip.Addr) (bool, error) {
	if local, ok := c.known[addr]; ok {
		return local, nil
	}
	local, err := c.from.IsLocal(addr)
	if err == nil {
		c.known[addr] = local
	}
	return local, err
}

// ErrNoTable says that there are no rules to explain.
var ErrNoTable = errors.New("no rules of veridict")

// Explain takes the first packet of a connection through the rules as the kernel
// holds them, for all buckets that they can draw. It looks up single elements and
// changes nothing. A rule with an expression that veridict does not write is an
// error that names its chain.
func Explain(ctx context.Context, q Question, locate Locator) (*Explanation, error) {
	i := slices.IndexFunc(families(), func(f family) bool { return f.id == dataplane.FamilyOf(q.To.Addr) })
	f := families()[i]
	k := &netlinkKernel{own: new(ownership)}
	found, err := k.objects(ctx, f)
	if err := errors.Join(err, k.close()); err != nil {
		return nil, err
	}
	if len(found.chains) == 0 {
		return nil, fmt.Errorf("%w: there is no table %s %s in this network namespace; does veridict run here?", ErrNoTable, f.ip, tableName)
	}
	rules, err := listExpressions(ctx, f)
	if err != nil {
		return nil, err
	}
	e := &explainer{
		family: f, question: q, locate: cachedLocator{locate, make(map[netip.Addr]bool)}, rules: rules, chains: found.chains,
		elements: &cachedElements{from: kernelElements{f}, known: make(map[string]*element)},
	}
	return e.explain(ctx)
}

// explainer answers one question.
type explainer struct {
	family   family
	question Question
	locate   Locator
	chains   []chainInfo
	rules    map[string][][]expression
	elements elementSource
}

// elementSource looks up single elements.
type elementSource interface {
	// find returns the element of a set that holds the key, nil if none does.
	find(ctx context.Context, set, key string) (*element, error)
}

// Verdicts of explanations.
const (
	Translated   = "translated"
	Untranslated = "untranslated"
	Rejected     = "rejected"
	Dropped      = "dropped"
)

func (e *explainer) explain(ctx context.Context) (*Explanation, error) {
	found := outcomes{targets: make(map[Target]*Target), ways: make(map[Target]*walk)}
	branches := new(branches)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		walk, err := e.walk(ctx, branches)
		if err != nil {
			return nil, err
		}
		found.add(walk, branches.probability())
		if !branches.advance() {
			break
		}
	}
	out := found.explanation()
	if out.Reason == "" {
		reason, err := e.whyUntranslated(ctx, out)
		if err != nil {
			return nil, err
		}
		out.Reason = reason
	}
	return out, nil
}

// outcomes are what became of the ways through the rules.
type outcomes struct {
	// first is the first way.
	first *walk
	// targets are by what all buckets of one have in common, ways are the first that
	// lead to each.
	targets map[Target]*Target
	ways    map[Target]*walk
}

// add counts a way. One that a filter ends after the translation comes to no endpoint.
func (o *outcomes) add(w *walk, probability float64) {
	if o.first == nil {
		o.first = w
	}
	if w.outcome() != Translated {
		return
	}
	key := Target{Endpoint: w.dest, Masquerade: w.masquerade, Why: w.why}
	if o.targets[key] == nil {
		target := key
		o.targets[key], o.ways[key] = &target, w
	}
	o.targets[key].Probability += probability
	if w.drawn {
		o.targets[key].Buckets++
	}
}

// explanation returns the endpoints in order and the way to the first, or the first
// way if none leads to an endpoint.
func (o *outcomes) explanation() *Explanation {
	keys := slices.SortedFunc(maps.Keys(o.targets), func(a, b Target) int {
		return cmp.Or(cmp.Compare(o.targets[b].Probability, o.targets[a].Probability),
			a.Endpoint.Compare(b.Endpoint), cmp.Compare(a.Why, b.Why))
	})
	way := o.first
	if len(keys) > 0 {
		way = o.ways[keys[0]]
	}
	// Empty lists, not null, for who reads JSON.
	out := &Explanation{
		Verdict: way.outcome(), Reason: way.reason,
		Targets: make([]Target, 0, len(keys)), Steps: append([]Step{}, way.steps...),
	}
	for _, key := range keys {
		out.Targets = append(out.Targets, *o.targets[key])
	}
	return out
}

// whyUntranslated says why nothing applies to the packet.
func (e *explainer) whyUntranslated(ctx context.Context, out *Explanation) (string, error) {
	to := e.question.To
	if out.Verdict == Translated {
		return fmt.Sprintf("%s is a frontend of a Service", to), nil
	}
	nodePort := dataplane.VIP{Protocol: to.Protocol, Port: to.Port}
	for _, name := range []string{serviceMap, noEndpointMap} {
		found, err := e.elements.find(ctx, byKey(name, true), vipKey(nodePort))
		if err != nil {
			return "", err
		}
		if found != nil {
			return fmt.Sprintf("port %d is a NodePort, but %s takes none; see nodePortAddresses", to.Port, to.Addr), nil
		}
	}
	return "no Service has this address, port and protocol", nil
}

// walk is one way through the rules.
type walk struct {
	*explainer
	ctx      context.Context
	branches *branches
	packet
	hook, chain string
	depth       int
	steps       []Step
	masquerade  bool
	why         string
	reason      string
	verdict     ruleVerdict
	// drawn says that a bucket was.
	drawn bool
}

func (e *explainer) walk(ctx context.Context, b *branches) (*walk, error) {
	b.next = 0
	w := &walk{explainer: e, ctx: ctx, branches: b, packet: newPacket(e.family, &e.question)}
	hooks := []knftables.BaseChainHook{knftables.PreroutingHook}
	if e.question.In == "" {
		hooks[0] = knftables.OutputHook
	}
	if err := w.run(hooks[0]); err != nil {
		return nil, err
	}
	local, err := e.locate.IsLocal(w.dest.Addr())
	if err != nil {
		return nil, err
	}
	switch {
	case e.question.In == "" && local:
		hooks = append(hooks, knftables.PostroutingHook, knftables.InputHook)
	case e.question.In == "":
		hooks = append(hooks, knftables.PostroutingHook)
	case local:
		hooks = append(hooks, knftables.InputHook)
	default:
		hooks = append(hooks, knftables.ForwardHook, knftables.PostroutingHook)
	}
	for _, hook := range hooks[1:] {
		if err := w.run(hook); err != nil {
			return nil, err
		}
	}
	if w.translated && w.why == "" {
		w.why = w.whyNot()
	}
	return w, nil
}

// run takes the packet through the base chains of a hook.
func (w *walk) run(hook knftables.BaseChainHook) error {
	var bases []chainInfo
	for _, chain := range w.chains {
		if chain.base != nil && chain.base.hook == hook {
			bases = append(bases, chain)
		}
	}
	slices.SortFunc(bases, func(a, b chainInfo) int { return cmp.Compare(a.base.priority, b.base.priority) })
	for _, base := range bases {
		if w.verdict == verdictDrop || w.verdict == verdictReject {
			return nil
		}
		w.hook = string(hook)
		verdict, err := w.runChain(base.name)
		if err != nil {
			return err
		}
		w.verdict = verdict
	}
	return nil
}

// outcome returns the verdict of the explanation.
func (w *walk) outcome() string {
	switch {
	case w.verdict == verdictReject:
		return Rejected
	case w.verdict == verdictDrop:
		return Dropped
	case w.translated:
		return Translated
	default:
		return Untranslated
	}
}

func (w *walk) step(action string, s Step) {
	s.Hook, s.Chain, s.Action = w.hook, w.chain, action
	w.steps = append(w.steps, s)
}

// whyMasquerade says in words what led to the rule that masquerades.
func (w *walk) whyMasquerade() string {
	switch w.chain {
	case "masquerade-cluster-ips":
		return "the client is no pod of this node, or all connections to cluster IPs are masqueraded"
	case "masquerade-short-circuit":
		return "the node itself connects to a frontend of external traffic policy Local"
	}
	if last := len(w.steps) - 1; last >= 0 && w.steps[last].Set == hairpinConnections {
		return "the endpoint is the client itself"
	}
	return "external traffic policy Cluster"
}

func (w *walk) whyNot() string {
	for _, s := range w.steps {
		switch s.Detail {
		case "masquerade-short-circuit":
			return "external traffic policy Local keeps the client's address"
		case "masquerade-cluster-ips":
			if len(w.rules["masquerade-cluster-ips"]) == 0 {
				return "nothing tells which clients of cluster IPs are no pods of this node (see detectLocalMode)"
			}
			return "the client is a pod of this node"
		}
	}
	if w.hook == string(knftables.InputHook) {
		return "the endpoint is on the node itself"
	}
	return "no rule asks for it"
}

// refuse notes why a packet ends here.
func (w *walk) refuse() {
	switch w.chain {
	case "firewall":
		w.reason = "the client is in none of the source ranges of the load balancer's address"
	case rejectChain:
		w.reason = "the Service has no endpoints"
	case "reject-localhost":
		w.reason = "NodePorts are not served on loopback addresses"
	case "cluster-ips-check":
		w.reason = "the address is in a range of cluster IPs, but no Service has it"
		if w.verdict == verdictReject {
			w.reason = "the cluster IP has no such port and protocol"
		}
	default:
		w.reason = "the traffic policy is Local, and no endpoint is on this node"
	}
}

// branches are the numbers that rules draw, one way after the other.
type branches struct {
	values, limits []int
	next           int
}

// draw returns a number below n.
func (b *branches) draw(n int) int {
	if b.next == len(b.values) {
		b.values, b.limits = append(b.values, 0), append(b.limits, n)
	}
	b.next++
	return b.values[b.next-1]
}

// probability returns that of this way.
func (b *branches) probability() float64 {
	p := 1.0
	for _, n := range b.limits {
		p /= float64(n)
	}
	return p
}

// advance goes on to the next way, if there is one.
func (b *branches) advance() bool {
	for i := len(b.values) - 1; i >= 0; i-- {
		if b.values[i]+1 < b.limits[i] {
			b.values[i]++
			b.values, b.limits = b.values[:i+1], b.limits[:i+1]
			return true
		}
	}
	return false
}

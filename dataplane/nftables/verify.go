// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/veridict/veridict/dataplane"
)

// Kinds of difference.
const (
	Missing   = "missing"
	Surplus   = "surplus"
	Different = "different"
)

// Difference is one object of the kernel that is not as desired.
type Difference struct {
	// Kind is Missing, Surplus or Different.
	Kind string `json:"kind"`
	// Object is "table", "set", "chain", "rule" or "element".
	Object string `json:"object"`
	// Table is "ip veridict" or "ip6 veridict".
	Table string `json:"table"`
	// In is the set of an element or the chain of a rule.
	In string `json:"in,omitempty"`
	// Name is the object in nft's words.
	Name string `json:"name"`
	// Found is what the kernel has instead, where it is Different.
	Found string `json:"found,omitempty"`
}

// String returns the difference on one line.
func (d Difference) String() string {
	text := d.Kind + " " + d.Object
	if d.Object != "table" {
		text += " in " + d.Table
	}
	if d.In != "" {
		text += " " + d.In
	}
	text += ": " + d.Name
	if d.Found != "" {
		text += " (found: " + d.Found + ")"
	}
	return text
}

// Verify compares the kernel's tables with the state and returns what is
// missing, surplus or different, in a fixed order. Which endpoint has which
// bucket does not matter, and dispatch chains that nothing uses are no
// difference. It changes nothing. To learn how the kernel represents the
// wanted rules, it loads them in a network namespace of its own, which needs
// CAP_SYS_ADMIN.
func Verify(ctx context.Context, options Options, state dataplane.State) (list []Difference, err error) {
	if err := Probe(ctx); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	layout := options.Layout
	usable, err := trial(ctx, layout, options.Logger)
	if err != nil {
		return nil, err
	}
	k, err := newNetlinkKernel(usable)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	ports := sorted(state)
	for _, f := range usable {
		v := &verifier{
			kernel: k, family: f, layout: layout,
			ruleset: options.ruleset(f, &state.Settings),
			ports:   ofFamily(ports, f),
			sizes:   make(map[dataplane.VIP]int),
		}
		for i := range v.ports {
			v.sizes[v.ports[i].VIP()] = len(v.ports[i].Endpoints)
		}
		if err := v.run(ctx); err != nil {
			return nil, fmt.Errorf("verify table %s %s: %w", f.ip, tableName, err)
		}
		list = append(list, v.list...)
	}
	return list, nil
}

// verifier compares one table.
type verifier struct {
	kernel  kernel
	family  family
	layout  Layout
	ruleset ruleset
	ports   []dataplane.ServicePort
	// sizes are the numbers of buckets.
	sizes map[dataplane.VIP]int
	list  []Difference
}

func (v *verifier) add(kind, object, in, name, found string) {
	v.list = append(v.list, Difference{
		Kind: kind, Object: object, Table: v.family.ip + " " + tableName, In: in, Name: name, Found: found,
	})
}

func (v *verifier) run(ctx context.Context) error {
	found, err := v.kernel.objects(ctx, v.family)
	if err != nil {
		return err
	}
	if len(found.chains)+len(found.sets) == 0 {
		v.add(Missing, "table", "", v.family.ip+" "+tableName, "")
		return nil
	}
	if err := v.sets(ctx, found); err != nil {
		return err
	}
	return v.chains(ctx, found)
}

func (v *verifier) sets(ctx context.Context, found objects) error {
	for _, set := range v.ruleset.sets {
		i := slices.IndexFunc(found.sets, func(s setInfo) bool { return s.name == set.name })
		switch {
		case i < 0:
			v.add(Missing, "set", "", set.name, "")
		case !v.ruleset.accepts(found.sets[i]):
			v.add(Different, "set", "", set.name, found.sets[i].String())
		default:
			if err := v.elements(ctx, set); err != nil {
				return err
			}
		}
	}
	for _, set := range found.sets {
		if v.ruleset.set(set.name) == nil {
			v.add(Surplus, "set", "", set.name, "")
		}
	}
	return nil
}

// chains compares the chains and their rules. Rules are compared as the kernel
// holds them.
func (v *verifier) chains(ctx context.Context, found objects) error {
	wanted := v.ruleset.chains
	for _, n := range dispatchSizes(v.ports) {
		wanted = append(wanted, v.layout.dispatchChain(v.family, n))
	}
	want, err := loadElsewhere(ctx, v.family, &v.ruleset, wanted)
	if err != nil {
		return err
	}
	have, err := listRules(ctx, v.family)
	if err != nil {
		return err
	}
	for _, chain := range wanted {
		info := found.chain(chain.name)
		switch {
		case info == nil:
			v.add(Missing, "chain", "", chain.name, "")
			continue
		case !v.ruleset.acceptsChain(*info):
			v.add(Different, "chain", "", chain.name, info.String())
		}
		v.rules(chain, want[chain.name], have[chain.name])
	}
	for _, chain := range found.chains {
		if !isDispatch(chain.name) && v.ruleset.chain(chain.name) == nil {
			v.add(Surplus, "chain", "", chain.name, "")
		}
	}
	return nil
}

func (v *verifier) rules(chain chainDecl, want, have []string) {
	for i := range max(len(want), len(have)) {
		switch {
		case i >= len(have):
			v.add(Missing, "rule", chain.name, chain.rules[i], "")
		case i >= len(want):
			v.add(Surplus, "rule", chain.name, fmt.Sprintf("rule %d", i+1), "")
		case want[i] != have[i]:
			v.add(Different, "rule", chain.name, chain.rules[i], fmt.Sprintf("another rule %d", i+1))
		}
	}
}

// elements compares the elements of one set.
func (v *verifier) elements(ctx context.Context, set setDecl) error {
	before := len(v.list)
	want := make(map[string]element)
	for i := range v.ports {
		for _, e := range v.layout.elementsOf(&v.ports[i]) {
			if e.set == set.name {
				want[v.identity(e)] = e
			}
		}
	}
	var surplus []element
	err := v.kernel.elements(ctx, v.family, set.name, func(e element) {
		id := v.identity(e)
		wanted, ok := want[id]
		switch {
		case !ok:
			surplus = append(surplus, e)
		case set.kind == verdictMap && wanted.verdict != e.verdict:
			v.add(Different, "element", set.name, v.layout.text(v.family, wanted), e.verdict)
		}
		delete(want, id)
	})
	if err != nil {
		return err
	}
	for _, e := range want {
		v.add(Missing, "element", set.name, v.layout.text(v.family, e), "")
	}
	for _, e := range surplus {
		v.add(Surplus, "element", set.name, v.layout.text(v.family, e), "")
	}
	slices.SortFunc(v.list[before:], func(a, b Difference) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
	})
	return nil
}

// identity returns what has to be the same in an element that is wanted and one
// that is there. Of a row it is VIP and endpoint, as long as the bucket is one
// that is drawn.
func (v *verifier) identity(e element) string {
	if v.ruleset.set(e.set).kind != dataMap {
		return e.key
	}
	vip, bucket, endpoint, ok := v.layout.parseRow(v.family, e)
	if !ok || int(bucket) >= v.sizes[vip] {
		return e.key
	}
	return vip.String() + " " + endpoint.String()
}

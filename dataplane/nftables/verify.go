// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
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
			ruleset: options.ruleset(f, &state.Settings), settings: &state.Settings,
			ports: ofFamily(ports, f),
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
	kernel   kernel
	family   family
	layout   Layout
	ruleset  ruleset
	settings *dataplane.Settings
	ports    []dataplane.ServicePort
	// wanted is made when the affinity ids of the kernel are known.
	wanted *wanted
	list   []Difference
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
	have := make(map[string][]element)
	for _, set := range found.sets {
		declared := v.ruleset.set(set.name)
		if declared == nil || declared.learns || !v.ruleset.accepts(set) {
			continue
		}
		err := v.kernel.elements(ctx, v.family, set.name, func(e element) {
			have[set.name] = append(have[set.name], e)
		})
		if err != nil {
			return err
		}
	}
	v.wanted = newWanted(v.family, v.layout, v.ports, v.foundIDs(found, have))
	want := v.wanted.elements(v.settings)
	for _, set := range v.ruleset.sets {
		i := slices.IndexFunc(found.sets, func(s setInfo) bool { return s.name == set.name })
		switch {
		case i < 0:
			v.add(Missing, "set", "", set.name, "")
		case !v.ruleset.accepts(found.sets[i]):
			v.add(Different, "set", "", set.name, found.sets[i].String())
		default:
			v.elements(set, want[set.name], have[set.name])
		}
	}
	for _, set := range found.sets {
		if v.ruleset.set(set.name) == nil {
			v.add(Surplus, "set", "", set.name, "")
		}
	}
	return nil
}

// foundIDs returns the affinity ids that the kernel has: any will do.
func (v *verifier) foundIDs(found objects, have map[string][]element) affinityIDs {
	t := newTable(v.ruleset, v.layout, len(v.ports))
	for _, chain := range found.chains {
		if variant, ok := parseVariant(chain.name); ok {
			t.addVariant(variant)
		}
	}
	for _, set := range v.ruleset.sets {
		if set.kind != verdictMap {
			continue
		}
		for _, e := range have[set.name] {
			t.adoptElement(e, &leftovers{})
		}
	}
	t.adoptIDs(v.ports)
	return t.ids
}

// chains compares the chains and their rules. Rules are compared as the kernel
// holds them.
func (v *verifier) chains(ctx context.Context, found objects) error {
	wanted := slices.Concat(v.ruleset.chains, v.wanted.chains())
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
		if !isVariant(chain.name) && v.ruleset.chain(chain.name) == nil {
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
func (v *verifier) elements(set setDecl, wanted, have []element) {
	before := len(v.list)
	buckets := make(map[rowGroup]uint32)
	for _, e := range wanted {
		if group, bucket, _, ok := v.row(set, e); ok {
			buckets[group] = max(buckets[group], bucket+1)
		}
	}
	want := make(map[string][]element)
	for _, e := range wanted {
		id := v.identity(set, e, buckets)
		want[id] = append(want[id], e)
	}
	for _, e := range have {
		id := v.identity(set, e, buckets)
		list := want[id]
		if len(list) == 0 {
			v.add(Surplus, "element", set.name, e.text(v.family), "")
			continue
		}
		if set.kind == verdictMap && list[0].verdict != e.verdict {
			v.add(Different, "element", set.name, list[0].text(v.family), e.verdict)
		}
		want[id] = list[1:]
	}
	for _, list := range want {
		for _, e := range list {
			v.add(Missing, "element", set.name, e.text(v.family), "")
		}
	}
	slices.SortFunc(v.list[before:], func(a, b Difference) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
	})
}

// rowGroup are the rows that one draw chooses from.
type rowGroup struct {
	vip dataplane.VIP
	in  scope
}

// row takes an element apart if it is a row.
func (v *verifier) row(set setDecl, e element) (group rowGroup, bucket uint32, endpoint netip.AddrPort, ok bool) {
	if set.kind != dataMap {
		return group, 0, endpoint, false
	}
	vip, in, bucket, endpoint, ok := v.layout.parseRow(v.family, e)
	return rowGroup{vip, in}, bucket, endpoint, ok
}

// identity returns what has to be the same in an element that is wanted and one
// that is there. Of a row it is VIP and endpoint, as long as the bucket is one
// that is drawn.
func (v *verifier) identity(set setDecl, e element, buckets map[rowGroup]uint32) string {
	group, bucket, endpoint, ok := v.row(set, e)
	if !ok || bucket >= buckets[group] {
		return e.key + e.end
	}
	return fmt.Sprintf("%s %d %s", group.vip, group.in, endpoint)
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// Reset is part of dataplane.Syncer. It reads what the kernel holds, keeps
// what is right and changes the rest, in the same order as Sync: an endpoint
// keeps its bucket over a restart, and a packet always finds its way.
func (s *Syncer) Reset(ctx context.Context, state dataplane.State) (dataplane.Report, error) {
	s.begin()
	s.tables = nil
	s.rejected = make(map[frontendID]*rejected)
	settings := state.Settings
	ports := byFamily(state)
	var tables []*table
	for _, f := range s.families {
		list := ports[f.id]
		t := newTable(s.options.ruleset(f, &settings), s.options.Layout, len(list))
		if err := s.reset(ctx, t, list, &settings); err != nil {
			return s.report, fmt.Errorf("reset table %s %s: %w", f.ip, tableName, err)
		}
		tables = append(tables, t)
	}
	s.tables = tables
	s.unserved = make(map[dataplane.ServicePortKey]struct{})
	for _, list := range ports {
		s.noteUnserved(&dataplane.Update{Changed: list})
	}
	s.finish()
	return s.report, nil
}

// byFamily returns the ServicePorts of each family, in no particular order.
func byFamily(state dataplane.State) map[dataplane.Family][]dataplane.ServicePort {
	sizes := make(map[dataplane.Family]int)
	for key := range state.ServicePorts {
		sizes[key.Family]++
	}
	ports := make(map[dataplane.Family][]dataplane.ServicePort)
	for f, size := range sizes {
		ports[f] = make([]dataplane.ServicePort, 0, size)
	}
	for key, sp := range state.ServicePorts {
		ports[key.Family] = append(ports[key.Family], sp)
	}
	return ports
}

func (s *Syncer) reset(ctx context.Context, t *table, ports []dataplane.ServicePort, settings *dataplane.Settings) error {
	found, err := s.prepare(ctx, t)
	if err != nil {
		return err
	}
	leftover, err := s.adopt(ctx, t, found)
	if err != nil {
		return err
	}
	t.adoptIDs(ports)
	list := make([]*transition, 0, len(ports))
	for i := range ports {
		for _, vip := range ports[i].VIPs() {
			list = append(list, &transition{vip: vip, to: &ports[i]})
		}
	}
	list = append(list, t.abandoned(list)...)
	if err := s.addVariants(ctx, t, t.missing(list)); err != nil {
		return err
	}
	if err := s.deleteElements(ctx, t, leftover.elements); err != nil {
		return err
	}
	if _, err := s.addNodePortIPs(ctx, t, settings.NodePortAddresses); err != nil {
		return err
	}
	if err := s.takeOver(ctx, t, found, list); err != nil {
		return err
	}
	if err := s.run(ctx, t, []*transition{{}}, leftover.release(t, settings.NodePortAddresses)); err != nil {
		return err
	}
	// The ways in are opened when what they lead to is complete.
	if err := s.writeBase(ctx, t, found); err != nil {
		return err
	}
	t.chains.noteIdle(s.options.Now())
	s.sweeper.reset(t, ports)
	return s.deleteStrays(ctx, t, found)
}

// takeOver programs the VIPs. Where there were rules before, they may have been
// those of the other layout, which look for rows elsewhere: then all rows come
// first, then the rules, then the verdicts.
func (s *Syncer) takeOver(ctx context.Context, t *table, found objects, list []*transition) error {
	if len(found.chains) == 0 {
		return s.program(ctx, t, list)
	}
	if err := s.run(ctx, t, list, t.planRows); err != nil {
		return err
	}
	if err := s.writeRegular(ctx, t); err != nil {
		return err
	}
	return s.run(ctx, t, list, s.publisher(t))
}

// prepare makes the table, its sets and its regular chains, and returns what was
// there before.
func (s *Syncer) prepare(ctx context.Context, t *table) (objects, error) {
	found, err := s.kernel.objects(ctx, t.family)
	if err != nil {
		return objects{}, err
	}
	rebuild := false
	for _, set := range found.sets {
		if !t.structure.accepts(set) {
			s.log.Warn("a set is of another kind than this version needs; the table is built anew",
				"family", t.family.id, "set", set.name)
			rebuild = true
		}
	}
	for _, chain := range found.chains {
		switch {
		case t.structure.acceptsChain(chain):
		case t.structure.replaceable(chain):
			s.log.Warn("a base chain has another place or policy than this version needs; it is replaced",
				"family", t.family.id, "chain", chain.name)
		default:
			s.log.Warn("a chain that this version goes to is a base chain; the table is built anew",
				"family", t.family.id, "chain", chain.name)
			rebuild = true
		}
	}
	err = s.structure(ctx, t.family, func(tx *knftables.Transaction) {
		if rebuild {
			tx.Delete(&knftables.Table{})
			found = objects{}
		}
		writeTable(tx, &t.structure)
		for _, chain := range t.structure.regular() {
			if !found.hasChain(chain.name) {
				writeChain(tx, chain)
			}
		}
	})
	if err != nil {
		return objects{}, fmt.Errorf("write tables, sets and chains: %w", err)
	}
	return found, nil
}

// writeRegular gives the regular chains their rules, variants among them.
func (s *Syncer) writeRegular(ctx context.Context, t *table) error {
	chains := t.structure.regular()
	for _, state := range t.chains {
		chains = append(chains, state.variant.chain(t.family, t.layout))
	}
	if err := s.writeChains(ctx, t.family, chains); err != nil {
		return fmt.Errorf("write chains: %w", err)
	}
	return nil
}

// writeBase gives the base chains their rules. One that was found at another hook
// or priority is replaced.
func (s *Syncer) writeBase(ctx context.Context, t *table, found objects) error {
	err := s.structure(ctx, t.family, func(tx *knftables.Transaction) {
		for _, chain := range t.structure.base() {
			if old := found.chain(chain.name); old != nil && !t.structure.acceptsChain(*old) {
				deleteChains(tx, []string{chain.name})
			}
			writeChain(tx, chain)
		}
	})
	if err != nil {
		return fmt.Errorf("write base chains: %w", err)
	}
	return nil
}

// deleteElements deletes elements that this version would not write.
func (s *Syncer) deleteElements(ctx context.Context, t *table, list []element) error {
	ops := make([]op, len(list))
	for i, e := range list {
		ops[i] = op{element: e, delete: true}
	}
	if err := s.applyOps(ctx, t, ops); err != nil {
		return fmt.Errorf("delete leftover elements: %w", err)
	}
	return nil
}

// deleteStrays deletes chains and sets that this version does not have. Nothing
// leads to them any more. Kernels before 6.2 may still refuse, which is no harm:
// they are tried again at the next start.
func (s *Syncer) deleteStrays(ctx context.Context, t *table, found objects) error {
	var chains []string
	for _, chain := range found.chains {
		if !isVariant(chain.name) && t.structure.chain(chain.name) == nil {
			chains = append(chains, chain.name)
		}
	}
	var sets []setInfo
	for _, set := range found.sets {
		if t.structure.set(set.name) == nil {
			sets = append(sets, set)
		}
	}
	if len(chains)+len(sets) == 0 {
		return nil
	}
	err := s.structure(ctx, t.family, func(tx *knftables.Transaction) {
		deleteChains(tx, chains)
		for _, set := range sets {
			if set.kind == plainSet {
				tx.Delete(&knftables.Set{Name: set.name})
			} else {
				tx.Delete(&knftables.Map{Name: set.name})
			}
		}
	})
	if err != nil {
		s.log.Warn("leftover chains and sets stay until the next start", "family", t.family.id, "err", err)
	}
	return nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Options are what the probes are made with.
type Options struct {
	// PinPath is a directory of a BPF file system, made if it is missing. Each
	// network namespace needs one of its own. Nothing is pinned if it is empty.
	PinPath string
	// MaxSelections bounds the counters of each family. 262,144 if 0.
	MaxSelections uint32
	// Mode is how the programs are attached. If it is empty Netfilter where the kernel
	// can, else Fentry.
	Mode Mode
	// Priorities are where netfilter programs may be attached. Those next to -100 if
	// empty.
	Priorities Priorities
	// Logger is discarded if nil.
	Logger *slog.Logger
}

// Priorities are netfilter priorities before and after the translation of
// destinations, at -100, the best first. The first that is free is taken.
type Priorities struct {
	Before, After []int32
}

// Probes are attached programs and their maps.
type Probes struct {
	o      Options
	mode   Mode
	reason string
	maps   probesMaps
	// netfilter or tracing are loaded, as the mode says.
	netfilter probesPrograms
	tracing   fentryPrograms
	links     []attached
	// placements are those of netfilter programs.
	placements []placement
	// generation is that of the programs, 0 before they count.
	generation uint32
	// listed says that the frontends in the kernel are those of SetFrontends, and
	// not those of a process before this one.
	listed bool
}

// Open loads the programs and attaches them in the network namespace of the calling
// thread. If there are pinned ones of another process they are replaced, and counters
// go on. The error is an [Unsupported] where the machine or the process's
// capabilities do not allow it.
func Open(o Options) (*Probes, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if len(o.Priorities.Before) == 0 || len(o.Priorities.After) == 0 {
		o.Priorities = defaultPriorities()
	}
	mode, reason, err := choose(o.Mode)
	if err != nil {
		return nil, err
	}
	if o.PinPath != "" {
		if err := Prepare(o.PinPath); err != nil {
			return nil, err
		}
	}
	p := &Probes{o: o, mode: mode, reason: reason}
	before, err := p.load()
	if err != nil {
		return nil, fmt.Errorf("load BPF probes: %w", explain(err))
	}
	if err := p.addHistograms(); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("load BPF probes: %w", explain(err))
	}
	if err := p.takeOver(before); err != nil {
		_ = p.Detach()
		return nil, fmt.Errorf("attach BPF probes: %w", explain(err))
	}
	return p, nil
}

// predecessor is what another process has left.
type predecessor struct {
	// generation is that of its programs, 0 if there are none.
	generation uint32
	// control is its map, if it is not ours as well.
	control *ebpf.Map
}

// load makes the maps and loads the programs.
func (p *Probes) load() (predecessor, error) {
	spec, err := p.spec()
	if err != nil {
		return predecessor{}, err
	}
	if p.o.MaxSelections > 0 {
		spec.Maps[probesMapSelections4].MaxEntries = p.o.MaxSelections
		spec.Maps[probesMapSelections6].MaxEntries = p.o.MaxSelections
	}
	before, err := p.predecessor()
	if err != nil {
		return predecessor{}, err
	}
	if err := spec.Variables[probesVarGeneration].Set(before.generation + 1); err != nil {
		return predecessor{}, fmt.Errorf("set generation: %w", err)
	}
	if p.o.PinPath == "" {
		return before, p.assign(spec, nil)
	}
	for name, m := range spec.Maps {
		// Constants are no business of anybody else.
		if name[0] != '.' {
			m.Pinning = ebpf.PinByName
		}
	}
	options := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: p.o.PinPath}}
	err = p.assign(spec, options)
	if !errors.Is(err, ebpf.ErrMapIncompatible) {
		if before.control != nil {
			_ = before.control.Close()
			before.control = nil
		}
		return before, err
	}
	p.o.Logger.Warn("pinned BPF maps are of another kind; counters start anew", "path", p.o.PinPath, "err", err)
	if err := removeMaps(p.o.PinPath); err != nil {
		return before, err
	}
	return before, p.assign(spec, options)
}

// spec returns the programs of the mode. Both modes have the same maps.
func (p *Probes) spec() (*ebpf.CollectionSpec, error) {
	if p.mode == Netfilter {
		return loadProbes()
	}
	spec, err := loadFentry()
	if err != nil {
		return nil, err
	}
	namespace, err := ownNamespace()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[fentryVarNetns].Set(namespace); err != nil {
		return nil, fmt.Errorf("set network namespace: %w", err)
	}
	return spec, nil
}

// assign loads maps and programs.
func (p *Probes) assign(spec *ebpf.CollectionSpec, options *ebpf.CollectionOptions) error {
	if p.mode == Netfilter {
		return spec.LoadAndAssign(&struct {
			*probesPrograms
			*probesMaps
		}{&p.netfilter, &p.maps}, options)
	}
	return spec.LoadAndAssign(&struct {
		*fentryPrograms
		*probesMaps
	}{&p.tracing, &p.maps}, options)
}

// addHistograms adds those that a process before has not. The programs add none: a
// histogram is too large for their stack.
func (p *Probes) addHistograms() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count processors: %w", err)
	}
	empty := make([]probesHistogram, cpus)
	for _, at := range places() {
		for _, outcome := range []Outcome{Translated, Missed, Foreign} {
			key := probesLatencyKey{Family: at.family, Hook: uint8(at.hook), Outcome: uint8(outcome)}
			err := p.maps.Latency.Update(&key, empty, ebpf.UpdateNoExist)
			if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				return fmt.Errorf("write map %s: %w", probesMapLatency, err)
			}
		}
	}
	return nil
}

// predecessor reads which programs count now.
func (p *Probes) predecessor() (predecessor, error) {
	if p.o.PinPath == "" {
		return predecessor{}, nil
	}
	control, err := ebpf.LoadPinnedMap(filepath.Join(p.o.PinPath, probesMapControl), nil)
	if errors.Is(err, os.ErrNotExist) {
		return predecessor{}, nil
	}
	if err != nil {
		return predecessor{}, fmt.Errorf("open pinned map %s: %w", probesMapControl, err)
	}
	var block probesControlBlock
	if err := control.Lookup(uint32(0), &block); err != nil {
		_ = control.Close()
		return predecessor{}, fmt.Errorf("read pinned map %s: %w", probesMapControl, err)
	}
	return predecessor{generation: block.Generation, control: control}, nil
}

// takeOver attaches the programs, has them count from one packet to the next, and
// removes those of before.
func (p *Probes) takeOver(before predecessor) error {
	old, err := pinnedLinks(p.o.PinPath)
	if err != nil {
		return err
	}
	generation := before.generation + 1
	if err := p.attachAll(generation); err != nil {
		return err
	}
	// A packet that came to a hook before ours was there meets the old programs only.
	if err := waitForPackets(); err != nil {
		return err
	}
	if before.control != nil {
		// The two share no map: a connection of this moment may not be counted.
		if err := activate(before.control, 0); err != nil {
			return err
		}
		_ = before.control.Close()
	}
	if err := activate(p.maps.Control, generation); err != nil {
		return err
	}
	p.generation = generation
	// Packets that an old program has stamped are counted by an old one.
	if err := waitForPackets(); err != nil {
		return err
	}
	for _, path := range old {
		if err := removeLink(path); err != nil {
			p.o.Logger.Warn("cannot detach a BPF probe of before", "pin", path, "err", err)
		}
	}
	return p.clearStamps()
}

// clearStamps removes those of programs that are gone: a packet of ours at the same
// address would be taken for one of theirs.
func (p *Probes) clearStamps() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count processors: %w", err)
	}
	for hook := range p.maps.Stamps.MaxEntries() {
		if err := p.maps.Stamps.Put(hook, make([]probesStamp, cpus)); err != nil {
			return fmt.Errorf("write map %s: %w", probesMapStamps, err)
		}
	}
	return nil
}

func activate(control *ebpf.Map, generation uint32) error {
	block := probesControlBlock{Generation: generation}
	if err := control.Put(uint32(0), &block); err != nil {
		return fmt.Errorf("write map %s: %w", probesMapControl, err)
	}
	return nil
}

// Close lets go of the maps and links. Pinned ones go on counting.
func (p *Probes) Close() error {
	var errs []error
	for _, a := range p.links {
		errs = append(errs, a.link.Close())
	}
	return errors.Join(append(errs, p.netfilter.Close(), p.tracing.Close(), p.maps.Close())...)
}

// Detach ends the counting, also of pinned programs, and removes their pins. The
// counters stay pinned if they are.
func (p *Probes) Detach() error {
	errs := []error{p.retire()}
	for _, a := range p.links {
		if a.pin != "" {
			errs = append(errs, a.link.Unpin())
		}
	}
	return errors.Join(append(errs, p.Close())...)
}

// retire has the programs count no longer, unless others have taken over: the kernel
// keeps them for a moment after their pins have gone.
func (p *Probes) retire() error {
	if p.generation == 0 {
		return nil
	}
	var block probesControlBlock
	if err := p.maps.Control.Lookup(uint32(0), &block); err != nil {
		return fmt.Errorf("read map %s: %w", probesMapControl, err)
	}
	if block.Generation != p.generation {
		return nil
	}
	return activate(p.maps.Control, p.generation+1)
}

// Status says how and where the programs are attached.
func (p *Probes) Status() Status {
	s := Status{Mode: p.mode, Reason: p.reason, PinPath: p.o.PinPath, Capacity: int(p.maps.Selections4.MaxEntries())}
	for i := 0; i+1 < len(p.placements); i += 2 {
		before, after := p.placements[i], p.placements[i+1]
		s.Hooks = append(s.Hooks, HookStatus{
			Family: before.family, Hook: before.hook, Before: before.priority, After: after.priority,
		})
	}
	return s
}

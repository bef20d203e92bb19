// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// SetFrontends adds, changes and removes frontends; an unknown one is no error. The
// first call replaces all that a process before this one has left.
func (p *Probes) SetFrontends(changed map[Frontend]Affinity, removed []Frontend) error {
	keys := make([]probesFrontendKey, 0, batchSize)
	values := make([]probesFrontend, 0, batchSize)
	flush := func() error {
		if len(keys) == 0 {
			return nil
		}
		if _, err := p.maps.Frontends.BatchUpdate(keys, values, nil); err != nil {
			return fmt.Errorf("write map %s: %w", probesMapFrontends, err)
		}
		keys, values = keys[:0], values[:0]
		return nil
	}
	for f, affinity := range changed {
		keys = append(keys, frontendKey(f))
		values = append(values, probesFrontend{Service: affinity.Service, AffinitySeconds: affinity.Seconds})
		if len(keys) == batchSize {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	gone := make([]probesFrontendKey, 0, len(removed))
	for _, f := range removed {
		gone = append(gone, frontendKey(f))
	}
	if !p.listed {
		left, err := p.leftFrontends(changed)
		if err != nil {
			return err
		}
		gone = slices.Concat(gone, left)
	}
	for i := range gone {
		if err := p.maps.Frontends.Delete(&gone[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove from map %s: %w", probesMapFrontends, err)
		}
	}
	p.listed = true
	return nil
}

// leftFrontends returns those in the kernel that are not wanted.
func (p *Probes) leftFrontends(wanted map[Frontend]Affinity) ([]probesFrontendKey, error) {
	keep := make(map[probesFrontendKey]struct{}, len(wanted))
	for f := range wanted {
		keep[frontendKey(f)] = struct{}{}
	}
	var left []probesFrontendKey
	err := eachEntry(p.maps.Frontends, func(key *probesFrontendKey, _ *probesFrontend) {
		if _, ok := keep[*key]; !ok {
			left = append(left, *key)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", probesMapFrontends, err)
	}
	return left, nil
}

func frontendKey(f Frontend) probesFrontendKey {
	key := probesFrontendKey{Port: f.Port, Protocol: f.Protocol, Family: f.Family}
	switch {
	case !f.Addr.IsValid():
	case f.Addr.Is4():
		addr := f.Addr.As4()
		copy(key.Addr[:], addr[:])
	default:
		key.Addr = f.Addr.As16()
	}
	return key
}

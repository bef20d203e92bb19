// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attached is an attached program.
type attached struct {
	link link.Link
	// pin is where the link is pinned, if it is.
	pin string
}

// attachAll attaches all programs.
func (p *Probes) attachAll(generation uint32) error {
	if p.mode == Netfilter {
		return p.attachNetfilter(generation)
	}
	return p.attachFentry(generation)
}

// keep remembers a link, and pins it if anything is pinned.
func (p *Probes) keep(l link.Link, name string) error {
	a := attached{link: l}
	if p.o.PinPath != "" {
		a.pin = filepath.Join(p.o.PinPath, linksDir, name)
	}
	p.links = append(p.links, a)
	if a.pin == "" {
		return nil
	}
	if err := l.Pin(a.pin); err != nil {
		return fmt.Errorf("pin link %s: %w", a.pin, err)
	}
	return nil
}

// waitForPackets returns when all packets that are in a netfilter hook now have left
// it. Hooks are called under RCU, and the kernel answers an update of a map of maps
// when the readers of before are gone: programs are to see no more of the old map.
func waitForPackets() error {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	outer := &ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner}
	maps, err := ebpf.NewMap(outer)
	if err != nil {
		return fmt.Errorf("make a map of maps: %w", err)
	}
	defer maps.Close()
	entry, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("make a map: %w", err)
	}
	defer entry.Close()
	if err := maps.Put(uint32(0), entry); err != nil {
		return fmt.Errorf("wait for packets on their way: %w", err)
	}
	return nil
}

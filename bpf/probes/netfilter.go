// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// placement is where a netfilter program is attached.
type placement struct {
	place
	priority int32
}

// defaultPriorities are around that of destination NAT, -100. The kernel refuses a BPF
// program where another hook is, and another hook where one is; an upgrade needs two
// of each.
func defaultPriorities() Priorities {
	return Priorities{Before: []int32{-101, -102, -103, -104}, After: []int32{-99, -98, -97, -96}}
}

// place is where the two programs belong.
type place struct {
	family   uint8
	protocol link.NetfilterProtocolFamily
	hook     Hook
	inet     link.NetfilterInetHook
}

func places() []place {
	return []place{
		{4, link.NetfilterProtoIPv4, Prerouting, link.NetfilterInetPreRouting},
		{4, link.NetfilterProtoIPv4, Output, link.NetfilterInetLocalOut},
		{6, link.NetfilterProtoIPv6, Prerouting, link.NetfilterInetPreRouting},
		{6, link.NetfilterProtoIPv6, Output, link.NetfilterInetLocalOut},
	}
}

// attachNetfilter attaches both programs everywhere: a pair for each place, in order.
func (p *Probes) attachNetfilter(generation uint32) error {
	for _, at := range places() {
		for _, half := range []struct {
			name       string
			program    *ebpf.Program
			priorities []int32
		}{
			{"before", p.netfilter.ProbeBefore, p.o.Priorities.Before},
			{"after", p.netfilter.ProbeAfter, p.o.Priorities.After},
		} {
			l, priority, err := attach(half.program, at, half.priorities)
			if err != nil {
				return fmt.Errorf("IPv%d %s: %w", at.family, at.hook, err)
			}
			p.placements = append(p.placements, placement{at, priority})
			if err := p.keep(l, fmt.Sprintf("ipv%d_%s_%s_%d", at.family, at.hook, half.name, generation)); err != nil {
				return err
			}
		}
	}
	return nil
}

// attach takes the first priority that is free.
func attach(program *ebpf.Program, at place, priorities []int32) (link.Link, int32, error) {
	for _, priority := range priorities {
		l, err := link.AttachNetfilter(link.NetfilterOptions{
			Program: program, ProtocolFamily: at.protocol, Hook: at.inet, Priority: priority,
		})
		switch {
		case errors.Is(err, unix.EBUSY):
			continue
		case err != nil:
			return nil, 0, fmt.Errorf("priority %d: %w", priority, err)
		}
		return l, priority, nil
	}
	return nil, 0, fmt.Errorf("priorities %d to %d all have other hooks: see bpftool net and nft list hooks",
		priorities[0], priorities[len(priorities)-1])
}

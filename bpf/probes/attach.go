// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attached is a program at a hook.
type attached struct {
	link     link.Link
	family   uint8
	hook     Hook
	priority int32
	// pin is where the link is pinned, if it is.
	pin string
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

// attachAll attaches both programs everywhere: a pair for each place, in order.
func (p *Probes) attachAll(generation uint32) error {
	for _, at := range places() {
		for _, half := range []struct {
			name       string
			program    *ebpf.Program
			priorities []int32
		}{
			{"before", p.objects.ProbeBefore, p.o.Priorities.Before},
			{"after", p.objects.ProbeAfter, p.o.Priorities.After},
		} {
			a, err := attach(half.program, at, half.priorities)
			if err != nil {
				return fmt.Errorf("IPv%d %s: %w", at.family, at.hook, err)
			}
			if p.o.PinPath != "" {
				a.pin = filepath.Join(p.o.PinPath, linksDir,
					fmt.Sprintf("ipv%d_%s_%s_%d", at.family, at.hook, half.name, generation))
			}
			p.links = append(p.links, a)
			if a.pin == "" {
				continue
			}
			if err := a.link.Pin(a.pin); err != nil {
				return fmt.Errorf("pin link %s: %w", a.pin, err)
			}
		}
	}
	return nil
}

// attach takes the first priority that is free.
func attach(program *ebpf.Program, at place, priorities []int32) (attached, error) {
	for _, priority := range priorities {
		l, err := link.AttachNetfilter(link.NetfilterOptions{
			Program: program, ProtocolFamily: at.protocol, Hook: at.inet, Priority: priority,
		})
		switch {
		case errors.Is(err, unix.EBUSY):
			continue
		case err != nil:
			return attached{}, fmt.Errorf("priority %d: %w", priority, err)
		}
		return attached{link: l, family: at.family, hook: at.hook, priority: priority}, nil
	}
	return attached{}, fmt.Errorf("priorities %d to %d all have other hooks: see bpftool net and nft list hooks",
		priorities[0], priorities[len(priorities)-1])
}

// linksDir is the directory of pinned links.
const linksDir = "links"

// preparePins makes the directories.
func preparePins(path string) error {
	if err := ensureBPFFS(path); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(path, linksDir), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	return nil
}

// pinnedLinks returns the paths of all links, none without a directory.
func pinnedLinks(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(path, linksDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	paths := make([]string, len(entries))
	for i, entry := range entries {
		paths[i] = filepath.Join(path, linksDir, entry.Name())
	}
	return paths, nil
}

// removeLink detaches a pinned link. Without its name alone it would end a moment
// later. What is no link is removed even so.
func removeLink(path string) error {
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		if err := errors.Join(l.Detach(), l.Close()); err != nil {
			return fmt.Errorf("detach pinned program: %w", err)
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unpin link: %w", err)
	}
	return nil
}

// removeMaps unpins all maps.
func removeMaps(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("list pinned maps: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		if err := os.Remove(filepath.Join(path, entry.Name())); err != nil {
			return fmt.Errorf("unpin map: %w", err)
		}
	}
	return nil
}

// Remove detaches all that is pinned at the path and removes the pins, maps
// included. There need not be any.
func Remove(path string) error {
	links, err := pinnedLinks(path)
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := removeLink(l); err != nil {
			return err
		}
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := removeMaps(path); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(path, linksDir), path} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pin directory: %w", err)
		}
	}
	return nil
}

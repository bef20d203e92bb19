// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// freshSuffix stands in the name of a pin that is about to replace another.
const freshSuffix = "_new"

// hook is a program and where it goes.
type hook struct {
	name    string
	program *ebpf.Program
	attach  ebpf.AttachType
}

// hooks returns all programs. Those that restore addresses come first, so that no
// address is redirected that could not be restored.
func (p *Programs) hooks() []hook {
	o := &p.objects
	return []hook{
		{kernelProgRecvmsg4, o.Recvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
		{kernelProgRecvmsg6, o.Recvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
		{kernelProgGetpeername4, o.Getpeername4, ebpf.AttachCgroupInet4GetPeername},
		{kernelProgGetpeername6, o.Getpeername6, ebpf.AttachCgroupInet6GetPeername},
		{kernelProgConnect4, o.Connect4, ebpf.AttachCGroupInet4Connect},
		{kernelProgConnect6, o.Connect6, ebpf.AttachCGroupInet6Connect},
		{kernelProgSendmsg4, o.Sendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
		{kernelProgSendmsg6, o.Sendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
	}
}

func (p *Programs) attach() error {
	for _, h := range p.hooks() {
		l, err := p.attachOne(h)
		if err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.name, p.o.CgroupPath, explain(err))
		}
		p.links = append(p.links, l)
	}
	return nil
}

// attachOne puts the new program in before the pinned one goes.
func (p *Programs) attachOne(h hook) (link.Link, error) {
	pin := linkPin(p.o.PinPath, h.name)
	if p.o.PinPath != "" {
		old, err := p.replace(pin, h.program)
		if old != nil || err != nil {
			return old, err
		}
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: p.o.CgroupPath, Attach: h.attach, Program: h.program})
	if err != nil || p.o.PinPath == "" {
		return l, err
	}
	if err := pinOver(l, pin); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// replace changes the program of a pinned link. It returns nil if there is none, or
// one on another cgroup.
func (p *Programs) replace(pin string, program *ebpf.Program) (link.Link, error) {
	old, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned link: %w", err)
	}
	if same, err := isOn(old, p.o.CgroupPath); err != nil || !same {
		return nil, errors.Join(err, old.Close())
	}
	if err := old.Update(program); err != nil {
		return nil, errors.Join(fmt.Errorf("replace pinned program: %w", err), old.Close())
	}
	return old, nil
}

// isOn says whether a link is on that cgroup. The number of a cgroup is that of its
// directory; a link has none after its cgroup has been removed.
func isOn(l link.Link, cgroup string) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read pinned link: %w", err)
	}
	dir, err := os.Stat(cgroup)
	if err != nil {
		return false, err
	}
	stat, ok := dir.Sys().(*syscall.Stat_t)
	on := info.Cgroup()
	return ok && on != nil && on.CgroupId == stat.Ino, nil
}

// pinOver pins a link in the place of another, which ends by it.
func pinOver(l link.Link, pin string) error {
	fresh := pin + freshSuffix
	if err := removePin(fresh); err != nil {
		return err
	}
	if err := l.Pin(fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, pin); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

func linkPin(dir, program string) string { return filepath.Join(dir, "link_"+program) }

// Remove detaches what [Options.PinPath] has kept, and removes the directory unless
// something else is in it. One that is not there, or no path, is no error.
func Remove(pinPath string) error {
	if pinPath == "" {
		return nil
	}
	for _, h := range new(Programs).hooks() {
		pin := linkPin(pinPath, h.name)
		for _, name := range []string{pin, pin + freshSuffix} {
			if err := unpinLink(name); err != nil {
				return err
			}
		}
	}
	if err := unpinMaps(pinPath); err != nil {
		return err
	}
	err := os.Remove(pinPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// unpinLink detaches a pinned link. Without its name alone it would end a moment
// later. What is no link is removed even so.
func unpinLink(pin string) error {
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		if err := errors.Join(l.Detach(), l.Close()); err != nil {
			return fmt.Errorf("detach pinned program: %w", err)
		}
	}
	return removePin(pin)
}

func removePin(pin string) error {
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}

func unpinMaps(pinPath string) error {
	for _, name := range pinnedMaps() {
		if err := removePin(filepath.Join(pinPath, name)); err != nil {
			return err
		}
	}
	return nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Options say where the programs go.
type Options struct {
	// CgroupPath is the directory of the cgroup2 whose processes are served. Empty:
	// the root of the hierarchy, so all processes of the network namespace.
	CgroupPath string
	// PinPath is a directory of a BPF file system, made if it is missing, where maps
	// and links are pinned, so that they outlive the process. It belongs to this
	// package and network namespace alone. Empty: all ends with the process.
	PinPath string
	Logger  *slog.Logger
}

// Programs are the attached programs.
type Programs struct {
	o       Options
	objects kernelObjects
	links   []link.Link
}

// Open loads the programs and attaches them. Those that an earlier process has pinned
// are replaced without a gap, and its NodePorts and counters are kept. After an error
// nothing is attached, not what was pinned either; see [PermissionError],
// [HiddenRootError], [ErrNoCgroup2] and [ErrOldKernel].
func Open(o Options) (*Programs, error) {
	p, err := open(o)
	if err == nil {
		return p, nil
	}
	// What an earlier process has left would redirect by the NodePorts of its time.
	return nil, errors.Join(fmt.Errorf("redirect NodePorts on loopback addresses: %w", err), Remove(o.PinPath))
}

func open(o Options) (_ *Programs, err error) {
	if o.CgroupPath == "" {
		if o.CgroupPath, err = findCgroup2(mountTable); err != nil {
			return nil, err
		}
	}
	cookie, err := namespaceCookie()
	if err != nil {
		return nil, err
	}
	p := &Programs{o: o}
	if err := p.load(cookie); err != nil {
		return nil, err
	}
	if err := p.attach(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// namespaceCookie returns what the kernel calls the network namespace of this thread.
func namespaceCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, ErrOldKernel
	}
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

// load loads programs and maps, and takes pinned maps over.
func (p *Programs) load(cookie uint64) error {
	spec, err := loadKernel()
	if err != nil {
		return fmt.Errorf("read programs: %w", err)
	}
	if err := spec.Variables[kernelVarNetnsCookie].Set(cookie); err != nil {
		return fmt.Errorf("set the network namespace: %w", err)
	}
	var options ebpf.CollectionOptions
	if p.o.PinPath != "" {
		if err := os.MkdirAll(p.o.PinPath, 0o700); err != nil {
			return fmt.Errorf("make a directory for pins: %w", err)
		}
		options.Maps.PinPath = p.o.PinPath
		for _, name := range pinnedMaps() {
			spec.Maps[name].Pinning = ebpf.PinByName
		}
	}
	err = spec.LoadAndAssign(&p.objects, &options)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		p.o.Logger.Warn("maps of redirected NodePorts are those of another version: counters start anew", "path", p.o.PinPath)
		if err := unpinMaps(p.o.PinPath); err != nil {
			return err
		}
		err = spec.LoadAndAssign(&p.objects, &options)
	}
	if err != nil {
		return fmt.Errorf("load programs: %w", explain(err))
	}
	return nil
}

func pinnedMaps() []string { return []string{kernelMapNodePorts, kernelMapRedirected, kernelMapCounts} }

// Close ends the redirection, unless it is pinned: then it goes on, with the
// NodePorts of now.
func (p *Programs) Close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	p.links = nil
	return errors.Join(append(errs, p.objects.Close())...)
}

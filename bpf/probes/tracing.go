// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The function that translates, and its module.
const (
	natFunction = "nf_nat_inet_fn"
	natModule   = "nf_nat"
)

// attachFentry attaches all tracing p.tracing. They look at packets of one network
// namespace.
func (p *Probes) attachFentry(generation uint32) error {
	for _, half := range []struct {
		name    string
		program *ebpf.Program
	}{
		{"prerouting_enter", p.tracing.EnterPrerouting},
		{"prerouting_leave", p.tracing.LeavePrerouting},
		{"output_enter", p.tracing.EnterOutput},
		{"output_leave", p.tracing.LeaveOutput},
	} {
		l, err := link.AttachTracing(link.TracingOptions{Program: half.program})
		if err != nil {
			return fmt.Errorf("%s of %s: %w", half.name, natFunction, err)
		}
		if err := p.keep(l, fmt.Sprintf("%s_%s_%d", natFunction, half.name, generation)); err != nil {
			return err
		}
	}
	return nil
}

// ownNamespace returns the inode of the calling thread's network namespace.
func ownNamespace() (uint32, error) {
	var file unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &file); err != nil {
		return 0, fmt.Errorf("find the network namespace: %w", err)
	}
	// The kernel's are of 32 bits.
	return uint32(file.Ino), nil
}

// traceable returns an *Unsupported where tracing programs cannot be attached to the
// function that translates.
func traceable() error {
	var function *btf.Func
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("read the kernel's BTF: %w", err)
	}
	err = kernel.TypeByName(natFunction, &function)
	if err == nil {
		return nil
	}
	if !errors.Is(err, btf.ErrNotFound) {
		return fmt.Errorf("look for %s: %w", natFunction, err)
	}
	module, err := btf.LoadKernelModuleSpec(natModule)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &Unsupported{Reason: "module " + natModule + " is not loaded, or has no BTF (CONFIG_DEBUG_INFO_BTF_MODULES)"}
	case err != nil:
		return fmt.Errorf("read the BTF of module %s: %w", natModule, err)
	}
	if err := module.TypeByName(natFunction, &function); err != nil {
		return &Unsupported{Reason: "the kernel has no function " + natFunction, Err: err}
	}
	caps, err := effectiveCapabilities()
	if err != nil {
		return err
	}
	if !caps.has(unix.CAP_SYS_ADMIN) {
		return &Unsupported{Reason: "this process lacks CAP_SYS_ADMIN, which the kernel wants of who traces a module"}
	}
	return nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Unsupported says why there are no probes, in words for an operator.
type Unsupported struct {
	Reason string
	// Err is what the kernel said, if it said anything.
	Err error
}

func (u *Unsupported) Error() string {
	if u.Err == nil {
		return u.Reason
	}
	return u.Reason + ": " + u.Err.Error()
}

func (u *Unsupported) Unwrap() error { return u.Err }

// choose returns how the probes can be attached, the wanted way if there is one, and
// what speaks against Netfilter. The error is an *Unsupported where it is known
// beforehand that they cannot be loaded.
func choose(wanted Mode) (Mode, string, error) {
	missing, err := missingCapabilities()
	if err != nil {
		return "", "", err
	}
	if len(missing) > 0 {
		return "", "", &Unsupported{Reason: "this process lacks " + strings.Join(missing, ", ")}
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return "", "", &Unsupported{Reason: "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)", Err: err}
	}
	reason := "asked for"
	if wanted != Fentry {
		err := features.HaveProgramType(ebpf.Netfilter)
		if err == nil {
			return Netfilter, "", nil
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return "", "", fmt.Errorf("ask for BPF netfilter programs: %w", explain(err))
		}
		reason = "the kernel has no BPF netfilter programs (Linux 6.4, CONFIG_NETFILTER_BPF_LINK)"
	}
	if wanted == Netfilter {
		return "", "", &Unsupported{Reason: reason}
	}
	err = traceable()
	if unsupported, ok := errors.AsType[*Unsupported](err); ok && wanted == "" {
		unsupported.Reason = reason + ", and " + unsupported.Reason
	}
	return Fentry, reason, err
}

// capabilities are those of a thread that are in effect.
type capabilities [2]unix.CapUserData

func effectiveCapabilities() (capabilities, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var c capabilities
	if err := unix.Capget(&header, &c[0]); err != nil {
		return c, fmt.Errorf("read capabilities: %w", err)
	}
	return c, nil
}

func (c *capabilities) has(capability uint) bool {
	return c[capability/32].Effective&(1<<(capability%32)) != 0
}

// missingCapabilities returns the names of those that the probes need in any mode and
// the process does not have.
func missingCapabilities() ([]string, error) {
	c, err := effectiveCapabilities()
	if err != nil {
		return nil, err
	}
	// CAP_SYS_ADMIN stands for the two that Linux 5.8 has split off.
	admin := c.has(unix.CAP_SYS_ADMIN)
	var missing []string
	if !c.has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if !c.has(unix.CAP_BPF) && !admin {
		missing = append(missing, "CAP_BPF")
	}
	if !c.has(unix.CAP_PERFMON) && !admin {
		missing = append(missing, "CAP_PERFMON")
	}
	return missing, nil
}

// errnoNotSupported is the kernel's ENOTSUPP, which is not meant for programs. It comes
// where an architecture cannot attach tracing programs.
const errnoNotSupported = unix.Errno(524)

// explain turns a refusal into an *Unsupported.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		// The library guesses at memory limits, which is long past.
		return &Unsupported{Reason: "the kernel does not permit it (lockdown, seccomp or a security module)", Err: unix.EPERM}
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, errnoNotSupported):
		return &Unsupported{Reason: "the kernel lacks something that the probes need", Err: err}
	}
	return err
}

// ensureBPFFS mounts a BPF file system where path belongs to the usual one and that
// is not mounted.
func ensureBPFFS(path string) error {
	const usual = "/sys/fs/bpf"
	var fs unix.Statfs_t
	existing := path
	for unix.Statfs(existing, &fs) != nil {
		parent := filepath.Dir(existing)
		if parent == existing {
			break
		}
		existing = parent
	}
	if fs.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if path != usual && !strings.HasPrefix(path, usual+"/") {
		return &Unsupported{Reason: path + " is not in a BPF file system"}
	}
	if err := unix.Mount("bpf", usual, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return &Unsupported{Reason: "no BPF file system is mounted at " + usual + ", and it cannot be", Err: err}
	}
	return nil
}

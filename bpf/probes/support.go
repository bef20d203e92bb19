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

// supported returns an *Unsupported where it is known beforehand that the probes
// cannot be loaded.
func supported() error {
	missing, err := missingCapabilities()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return &Unsupported{Reason: "this process lacks " + strings.Join(missing, ", ")}
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return &Unsupported{Reason: "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)", Err: err}
	}
	err = features.HaveProgramType(ebpf.Netfilter)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return &Unsupported{Reason: "the kernel has no BPF netfilter programs (Linux 6.4, CONFIG_NETFILTER_BPF_LINK)"}
	}
	if err != nil {
		return fmt.Errorf("ask for BPF netfilter programs: %w", explain(err))
	}
	return nil
}

// missingCapabilities returns the names of those that the probes need and the
// process does not have.
func missingCapabilities() ([]string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	has := func(capability uint) bool { return data[capability/32].Effective&(1<<(capability%32)) != 0 }
	// CAP_SYS_ADMIN stands for the two that Linux 5.8 has split off.
	admin := has(unix.CAP_SYS_ADMIN)
	var missing []string
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_BPF) && !admin {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) && !admin {
		missing = append(missing, "CAP_PERFMON")
	}
	return missing, nil
}

// explain turns a refusal into an *Unsupported.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		// The library guesses at memory limits, which is long past.
		return &Unsupported{Reason: "the kernel does not permit it (lockdown, seccomp or a security module)", Err: unix.EPERM}
	case errors.Is(err, ebpf.ErrNotSupported):
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

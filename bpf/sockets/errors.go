// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors of [Open] that say what the machine lacks.
var (
	// ErrOldKernel is returned before Linux 5.14.
	ErrOldKernel = errors.New("the kernel is older than 5.14: it does not tell the cookie of a network namespace")
	// ErrNoCgroup2 is returned if no cgroup2 hierarchy is mounted.
	ErrNoCgroup2 = errors.New("no cgroup2 file system is mounted: mount -t cgroup2 none DIRECTORY makes one")
)

// ErrFull is returned for a NodePort when there is no room for more.
var ErrFull = errors.New("the map of NodePorts is full")

// HiddenRootError says that only a part of the cgroup2 hierarchy is mounted, as in a
// container with a cgroup namespace of its own. Programs there would not see the
// node's processes.
type HiddenRootError struct {
	// Path is where it is mounted.
	Path string
}

// Error is part of error.
func (e *HiddenRootError) Error() string {
	return fmt.Sprintf("%s is not the root of the cgroup2 hierarchy: mount the host's /sys/fs/cgroup into the container, at any place", e.Path)
}

// PermissionError says that the kernel refused to load or attach a program.
type PermissionError struct {
	// Missing are the capabilities that the process lacks. None are missing where
	// something else forbids it, a seccomp filter for one.
	Missing []string
	Err     error
}

// Error is part of error.
func (e *PermissionError) Error() string {
	if len(e.Missing) == 0 {
		return "not permitted although CAP_BPF and CAP_NET_ADMIN are there: a seccomp filter or a security module forbids it: " + e.Err.Error()
	}
	return fmt.Sprintf("not permitted without %s: %v", strings.Join(e.Missing, " and "), e.Err)
}

// Unwrap is part of errors.
func (e *PermissionError) Unwrap() error { return e.Err }

// explain adds to an error that the kernel did not permit something what the process
// lacks for it.
func explain(err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return err
	}
	return &PermissionError{Missing: missingCapabilities(), Err: err}
}

// missingCapabilities returns none if it cannot be found out.
func missingCapabilities() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil
	}
	has := func(capability uint) bool { return data[capability/32].Effective&(1<<(capability%32)) != 0 }
	var missing []string
	// CAP_SYS_ADMIN includes what CAP_BPF permits.
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	return missing
}

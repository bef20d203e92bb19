// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockName is an abstract socket: one per network namespace, and gone with its
// process, however that ends.
const lockName = "@veridict"

// ErrRunning says that another process programs the tables of this network
// namespace.
var ErrRunning = errors.New("another veridict runs in this network namespace")

// Lock makes the caller the only writer of the tables of this network namespace
// until it closes the lock or ends. Otherwise the error is [ErrRunning] and
// names the process that holds it.
func Lock() (io.Closer, error) {
	listener, err := net.Listen("unix", lockName)
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w%s: stop it first", ErrRunning, holder())
	default:
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
}

// holder names the process that holds the lock, if the kernel tells.
func holder() string {
	conn, err := net.Dial("unix", lockName)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	name := ""
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && cred.Pid != 0 {
			name = fmt.Sprintf(" (process %d)", cred.Pid)
		}
	})
	return name
}

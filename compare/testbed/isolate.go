// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// isolatedVariable holds the network namespace from which an isolated process
// was started. That its own is another one proves that it is isolated; the
// variable alone, which may have leaked somewhere, does not.
const isolatedVariable = "VERIDICT_ISOLATED_FROM"

// Isolated says whether this process was started by [Isolate].
func Isolated() bool {
	from := os.Getenv(isolatedVariable)
	own, err := os.Readlink("/proc/self/ns/net")
	return err == nil && from != "" && from != own
}

// Isolate runs the program again, with the same arguments and standard streams,
// in a network namespace and a mount namespace of its own, and waits for it.
// There /run is empty and private: locks and sockets of the host's programs are
// not met, and what is written there vanishes with the process.
//
// Interrupts and requests to terminate go to the new process, which decides
// what to do about them; it is killed if this process dies. When ctx is done it
// is asked to terminate. An [ExitError] says that it has ended with a code other
// than 0.
func Isolate(ctx context.Context) error {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("isolate: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	defer signal.Stop(signals)

	// The kernel kills the child when the thread that made it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Args[0] = os.Args[0]
	child.Env = append(os.Environ(), isolatedVariable+"="+own)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:    unix.SIGKILL,
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("isolate: %w (does this kernel allow new namespaces here?)", err)
	}
	ended := make(chan struct{})
	go forward(ctx, child.Process, signals, ended)
	err = child.Wait()
	close(ended)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &ExitError{Code: exitCode(exit)}
	}
	if err != nil {
		return fmt.Errorf("isolate: %w", err)
	}
	return nil
}

// forward passes signals on until the process has ended. A process that has
// just ended cannot take one, which is no error.
func forward(ctx context.Context, process *os.Process, signals <-chan os.Signal, ended <-chan struct{}) {
	done := ctx.Done()
	for {
		select {
		case <-ended:
			return
		case received := <-signals:
			_ = process.Signal(received)
		case <-done:
			_ = process.Signal(unix.SIGTERM)
			done = nil
		}
	}
}

// ExitError says with which code an isolated process ended. It has reported
// itself what was wrong.
type ExitError struct {
	// Code is what the caller should end with, too; never 0.
	Code int
}

// Error is part of error.
func (e *ExitError) Error() string { return fmt.Sprintf("ended with exit code %d", e.Code) }

// ExitCode returns Code.
func (e *ExitError) ExitCode() int { return e.Code }

// exitCode follows the shells: 128 and the signal's number for a process that
// was killed by one.
func exitCode(exit *exec.ExitError) int {
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// EnterIsolation finishes in the isolated process what [Isolate] began: /run
// becomes empty and private, the loopback interface comes up. The directories of
// /run that are shared stay the host's, and are made there if they are missing. It
// must be called once, early, in a process for which [Isolated] is true.
func EnterIsolation(shared ...string) error {
	if !Isolated() {
		return errors.New("enter isolation: this process is not isolated")
	}
	if err := hideRun(shared); err != nil {
		return fmt.Errorf("enter isolation: %w", err)
	}
	node, err := CurrentNamespace()
	if err != nil {
		return fmt.Errorf("enter isolation: %w", err)
	}
	defer node.Close()
	if err := node.setUp("lo"); err != nil {
		return fmt.Errorf("enter isolation: %w", err)
	}
	return nil
}

// hideRun mounts an empty /run over the host's, but for the shared directories.
func hideRun(shared []string) error {
	kept := make([]int, len(shared))
	for i, dir := range shared {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("keep %s: %w", dir, err)
		}
		defer unix.Close(tree)
		kept[i] = tree
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for i, dir := range shared {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.MoveMount(kept[i], "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("keep %s: %w", dir, err)
		}
	}
	return nil
}

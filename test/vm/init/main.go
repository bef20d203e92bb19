// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// testProgram and its arguments, one a line, are what run.sh packs beside init.
	testProgram   = "/test/program"
	testArguments = "/test/arguments"

	outputPort = "/dev/ttyS1"
	// notRun is the exit status that stands for a test program that did not run.
	notRun = 255
)

func main() {
	console := os.Stdout
	status, err := run()
	if err != nil {
		fmt.Fprintln(console, "init:", err)
	}
	fmt.Fprintf(console, "VMEXIT:%d\n", status)
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(console, "init: power off:", err)
	}
}

// run prepares the machine, runs the test program and returns its exit status.
func run() (int, error) {
	if err := mountAll(); err != nil {
		return notRun, err
	}
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return notRun, err
	}
	// All other modules are loaded by the kernel when something asks for them.
	// The tests set sysctls that only conntrack brings, and trace a function of NAT
	// before anything else needs it.
	if out, err := exec.Command("modprobe", "-a", "nf_conntrack", "nf_nat").CombinedOutput(); err != nil {
		return notRun, fmt.Errorf("load modules: %w: %s", err, out)
	}
	output, err := openRaw(outputPort)
	if err != nil {
		return notRun, err
	}
	defer output.Close()
	arguments, err := os.ReadFile(testArguments)
	if err != nil {
		return notRun, err
	}
	program := exec.Command(testProgram, strings.FieldsFunc(string(arguments), func(r rune) bool { return r == '\n' })...)
	program.Stdout, program.Stderr = output, output
	err = program.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return notRun, fmt.Errorf("run the test program: %w", err)
	}
	return 0, nil
}

func mountAll() error {
	for _, m := range []struct{ fsType, dir string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"cgroup2", "/sys/fs/cgroup"},
		{"tmpfs", "/run"},
		{"tmpfs", "/tmp"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		// The kernel may have mounted /dev itself.
		err := unix.Mount(m.fsType, m.dir, m.fsType, 0, "")
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return nil
}

// openRaw opens a terminal that passes bytes on as they are: no carriage return
// before a line feed.
func openRaw(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	settings, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err == nil {
		settings.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, settings)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make %s raw: %w", path, err), port.Close())
	}
	return port, nil
}

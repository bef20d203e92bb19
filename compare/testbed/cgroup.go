// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Cgroup is a cgroup that has only this process: programs that are attached to it
// concern nobody else on the machine.
type Cgroup struct {
	// Path is its directory.
	Path string
	back string
}

// EnterCgroup makes a cgroup in the cgroup2 hierarchy, and moves this process into it,
// with all its threads. Sockets that it has already stay where they are.
func EnterCgroup() (*Cgroup, error) {
	root, err := cgroup2Mount()
	if err != nil {
		return nil, fmt.Errorf("enter cgroup: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("enter cgroup: %w", err)
	}
	back := root
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			back = filepath.Join(root, strings.TrimSuffix(path, "\n"))
		}
	}
	path, err := os.MkdirTemp(root, "veridict-")
	if err != nil {
		return nil, fmt.Errorf("enter cgroup: %w", err)
	}
	if err := moveTo(path); err != nil {
		return nil, errors.Join(fmt.Errorf("enter cgroup: %w", err), os.Remove(path))
	}
	return &Cgroup{Path: path, back: back}, nil
}

// Close moves the process back to where it was, and removes the cgroup.
func (c *Cgroup) Close() error {
	if err := moveTo(c.back); err != nil {
		return fmt.Errorf("leave cgroup: %w", err)
	}
	if err := os.Remove(c.Path); err != nil {
		return fmt.Errorf("leave cgroup: %w", err)
	}
	return nil
}

// cgroup2Mount returns where the hierarchy, or the part of it that is this container's,
// is mounted.
func cgroup2Mount() (string, error) {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1], nil
		}
	}
	return "", errors.New("no cgroup2 file system is mounted")
}

func moveTo(cgroup string) error {
	return os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

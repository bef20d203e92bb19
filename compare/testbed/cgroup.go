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

// EnterCgroup makes a cgroup in the cgroup2 hierarchy that is mounted at root, and
// moves this process into it, with all its threads. Sockets that it has already stay
// where they are.
func EnterCgroup(root string) (*Cgroup, error) {
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

func moveTo(cgroup string) error {
	return os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

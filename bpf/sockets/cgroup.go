// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mountTable lists what is mounted where.
const mountTable = "/proc/self/mounts"

// findCgroup2 returns where the root of the cgroup2 hierarchy is mounted.
func findCgroup2(table string) (string, error) {
	text, err := os.ReadFile(table)
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	var hidden error
	for _, path := range cgroup2Mounts(string(text)) {
		// All cgroups but the root have this file.
		_, err := os.Stat(filepath.Join(path, "cgroup.type"))
		if errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
		if err != nil {
			return "", fmt.Errorf("find cgroup2: %w", err)
		}
		hidden = &HiddenRootError{Path: path}
	}
	if hidden != nil {
		return "", hidden
	}
	return "", ErrNoCgroup2
}

// cgroup2Mounts returns the mount points of cgroup2, the usual ones first.
func cgroup2Mounts(table string) []string {
	usual := []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
	var paths []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) >= 3 && fields[2] == "cgroup2" {
			paths = append(paths, unescape(fields[1]))
		}
	}
	slices.SortStableFunc(paths, func(a, b string) int {
		return order(usual, a) - order(usual, b)
	})
	return paths
}

func order(list []string, item string) int {
	if i := slices.Index(list, item); i >= 0 {
		return i
	}
	return len(list)
}

// unescape reads a path of the mount table, in which a blank is \040.
func unescape(path string) string {
	var out strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if code, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(path[i])
	}
	return out.String()
}

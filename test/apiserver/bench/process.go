// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// memory returns the resident memory of a process now and at its peak, in MiB.
func memory(pid int) (rss, peak float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %g kB", &kib); n == 1 {
			rss = kib / 1024
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %g kB", &kib); n == 1 {
			peak = kib / 1024
		}
	}
	return rss, peak, nil
}

// tick is the unit of /proc/PID/stat, USER_HZ of Linux.
const tick = 10 * time.Millisecond

// cpuTime returns what a process and its children that have ended have used.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	// The name may have blanks; it ends with the last bracket.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var total time.Duration
	for _, field := range fields[11:15] {
		var ticks int64
		if _, err := fmt.Sscan(field, &ticks); err != nil {
			return 0, fmt.Errorf("read CPU time %q: %w", field, err)
		}
		total += time.Duration(ticks) * tick
	}
	return total, nil
}

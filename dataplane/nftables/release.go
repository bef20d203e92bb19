// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// runningKernel returns what uname -r prints, or nothing if the kernel does not
// say.
func runningKernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// repeatsLookups says whether a kernel repeats a lookup that found nothing while a
// transaction was committed: since 6.17, and in the 6.12 series since 6.12.48.
// Others may miss an element that is just being replaced. A release that cannot be
// read is taken for one of them.
func repeatsLookups(release string) bool {
	var major, minor, patch int
	// A release candidate has no third number.
	if n, _ := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch); n < 2 {
		return false
	}
	switch {
	case major != 6:
		return major > 6
	case minor == 12:
		return patch >= 48
	default:
		return minor >= 17
	}
}

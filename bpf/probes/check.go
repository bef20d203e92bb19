// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
)

// Check says by which mode the kernel could be observed, or why it could not. It loads
// the programs, attaches none and pins nothing.
func Check() (Mode, error) {
	mode, reason, err := choose("")
	if err != nil {
		return "", err
	}
	p := &Probes{o: Options{Priorities: defaultPriorities()}, mode: mode, reason: reason}
	_, err = p.load()
	if err = errors.Join(err, p.Close()); err != nil {
		return "", fmt.Errorf("load BPF probes: %w", explain(err))
	}
	return mode, nil
}

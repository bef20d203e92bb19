// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Observe says how the kernel is observed.
type Observe struct {
	// Off loads no BPF program.
	Off bool
	// Required ends veridict where the programs cannot be loaded; otherwise it does
	// without.
	Required bool
	// PinPath is where BPF maps and links are pinned. Empty: the usual place in the
	// network namespace of the machine, and nowhere in another.
	PinPath string
	// MaxSelections is the number of counters for each IP family.
	MaxSelections int
	// Interval is the time between two readings of the counters.
	Interval time.Duration
}

const (
	observeAuto          = "auto"
	observeOff           = "off"
	observeRequire       = "require"
	defaultMaxSelections = 262144
	largestMaxSelections = 1 << 24
	defaultInterval      = 5 * time.Second
	leastInterval        = 100 * time.Millisecond
)

// observeConfiguration is the part of a file.
type observeConfiguration struct {
	// Mode is auto, off or require.
	Mode string `json:"mode,omitempty"`
	// PinPath is an absolute path in a BPF file system.
	PinPath       string          `json:"pinPath,omitempty"`
	MaxSelections *int            `json:"maxSelections,omitempty"`
	Interval      metav1.Duration `json:"interval,omitzero"`
}

func (o *observeConfiguration) setDefaults() {
	if o.Mode == "" {
		o.Mode = observeAuto
	}
	setDefault(&o.MaxSelections, defaultMaxSelections)
	if o.Interval.Duration == 0 {
		o.Interval.Duration = defaultInterval
	}
}

// observeFlags override the file.
type observeFlags struct {
	mode, pinPath string
}

func (f *observeFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.mode, "observe", "", "observe the kernel with BPF: auto (if it can), off, or require (end if it cannot) (default auto)")
	set.StringVar(&f.pinPath, "bpf-pin-path", "",
		"`directory` of a BPF file system for maps and links (default /sys/fs/bpf/veridict in the machine's network namespace, nothing is pinned in others)")
}

func (f *observeFlags) override(o *observeConfiguration) {
	if f.mode != "" {
		o.Mode = f.mode
	}
	if f.pinPath != "" {
		o.PinPath = f.pinPath
	}
}

func (c *checker) observe(o *observeConfiguration) Observe {
	if modes := []string{observeAuto, observeOff, observeRequire}; !slices.Contains(modes, o.Mode) {
		c.add("observe.mode", "%q is none of %s", o.Mode, strings.Join(modes, ", "))
	}
	if o.PinPath != "" && !filepath.IsAbs(o.PinPath) {
		c.add("observe.pinPath", "%q is not an absolute path", o.PinPath)
	}
	if n := *o.MaxSelections; n < 1 || n > largestMaxSelections {
		c.add("observe.maxSelections", "%d is not between 1 and %d", n, largestMaxSelections)
	}
	if o.Interval.Duration < leastInterval {
		c.add("observe.interval", "%s is less than %s", o.Interval.Duration, leastInterval)
	}
	return Observe{
		Off: o.Mode == observeOff, Required: o.Mode == observeRequire, PinPath: o.PinPath, MaxSelections: *o.MaxSelections, Interval: o.Interval.Duration,
	}
}

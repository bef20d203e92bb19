// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
)

// Conntrack are the limits and timeouts of connection tracking, with kube-proxy's
// meaning. A zero value leaves the kernel's as it is.
type Conntrack struct {
	// MaxPerCore and Min bound the number of connections: at least Min, and
	// MaxPerCore for each CPU. MaxPerCore 0 leaves the limit as it is. The limit is
	// only ever raised.
	MaxPerCore, Min int
	// TCPEstablished and TCPCloseWait are timeouts of TCP states, in whole
	// seconds.
	TCPEstablished, TCPCloseWait time.Duration
	// TCPBeLiberal takes packets outside the window for valid.
	TCPBeLiberal bool
	// UDP and UDPStream are timeouts of UDP flows without and with answers, in
	// whole seconds.
	UDP, UDPStream time.Duration
}

// Files reads and writes the kernel's settings.
type Files interface {
	Read(path string) (string, error)
	Write(path, value string) error
}

// OSFiles are the files of this machine.
type OSFiles struct{}

// Read is part of [Files].
func (OSFiles) Read(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

// Write is part of [Files].
func (OSFiles) Write(path, value string) error { return os.WriteFile(path, []byte(value), 0) }

const (
	sysctlDir    = "/proc/sys/net/netfilter/"
	maxPath      = sysctlDir + "nf_conntrack_max"
	hashSizePath = "/sys/module/nf_conntrack/parameters/hashsize"
	// largestMax bounds the memory that nf_conntrack_max can ask for.
	largestMax = 1 << 20
	// perBucket is the length of hash chains that kube-proxy aims at.
	perBucket = 4
)

// setting is a file and the value that it should have.
type setting struct {
	path string
	want int
	// raise says that a larger value stays.
	raise bool
	// global says that the file is that of the initial network namespace, and
	// cannot be written from another.
	global bool
}

// settings returns what to write on a machine with cpus CPUs.
func (c Conntrack) settings(cpus int) []setting {
	var list []setting
	if limit := c.limit(cpus); limit > 0 {
		list = append(list,
			setting{path: maxPath, want: limit, raise: true, global: true},
			setting{path: hashSizePath, want: limit / perBucket, raise: true, global: true})
	}
	for _, timeout := range []struct {
		name string
		d    time.Duration
	}{
		{"nf_conntrack_tcp_timeout_established", c.TCPEstablished},
		{"nf_conntrack_tcp_timeout_close_wait", c.TCPCloseWait},
		{"nf_conntrack_udp_timeout", c.UDP},
		{"nf_conntrack_udp_timeout_stream", c.UDPStream},
	} {
		if seconds := int(timeout.d / time.Second); seconds > 0 {
			list = append(list, setting{path: sysctlDir + timeout.name, want: seconds})
		}
	}
	if c.TCPBeLiberal {
		list = append(list, setting{path: sysctlDir + "nf_conntrack_tcp_be_liberal", want: 1})
	}
	return list
}

func (c Conntrack) limit(cpus int) int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	return min(max(c.MaxPerCore*cpus, c.Min), largestMax)
}

// Apply writes what differs, for a machine with cpus CPUs. All that can be written
// is, whatever else fails. initial says that the network namespace is that of the
// machine.
func (c Conntrack) Apply(files Files, cpus int, initial bool, logger *slog.Logger) error {
	var errs []error
	for _, s := range c.settings(cpus) {
		if s.global && !initial {
			logger.Debug("left alone: it is a setting of the whole machine, not of this network namespace", "file", s.path)
			continue
		}
		if err := s.apply(files, logger); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s setting) apply(files Files, logger *slog.Logger) error {
	text, err := files.Read(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set connection tracking: %s is not there: load the module nf_conntrack", s.path)
	}
	if err != nil {
		return fmt.Errorf("set connection tracking: read %s: %w", s.path, err)
	}
	now, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("set connection tracking: %s holds %q, which is no number", s.path, text)
	}
	if now == s.want || s.raise && now > s.want {
		return nil
	}
	if err := files.Write(s.path, strconv.Itoa(s.want)); err != nil {
		return fmt.Errorf("set connection tracking: write %d to %s, which holds %d: make /proc/sys and /sys writable, "+
			"set it on the node, or set the value of --conntrack-* to 0: %w", s.want, s.path, now, err)
	}
	logger.Info("set connection tracking", "file", s.path, "from", now, "to", s.want)
	return nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Sysctls are settings below /proc/sys by their path, for example
// "net/ipv4/ip_forward".
type Sysctls map[string]string

// SetSysctls writes settings of the namespace. Only those below net/ belong to
// a namespace; the kernel shows a namespace its own.
func (n *Namespace) SetSysctls(settings Sysctls) error {
	return n.Do(func() error {
		for name, value := range settings {
			if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
				return fmt.Errorf("set sysctl %s: %w", name, err)
			}
		}
		return nil
	})
}

// setKnownSysctls is SetSysctls, but passes over those that the kernel does not
// have in a namespace.
func (n *Namespace) setKnownSysctls(settings Sysctls) error {
	for name, value := range settings {
		err := n.SetSysctls(Sysctls{name: value})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// icmpSysctls lift the limits on rejected connections, so that each fails at
// once. Older kernels keep some of them for all namespaces together and do not
// show them here. Packets without a route still get few answers: that limit no
// kernel has in a namespace.
func icmpSysctls() Sysctls {
	return Sysctls{
		"net/ipv4/icmp_ratelimit":    "0",
		"net/ipv4/icmp_msgs_per_sec": "1000000",
		"net/ipv4/icmp_msgs_burst":   "100000",
		"net/ipv6/icmp/ratelimit":    "0",
	}
}

// nodeSysctls make a namespace forward between its pods. Duplicate address
// detection would delay IPv6 addresses, and reverse path filtering would drop
// packets whose routes the kernel finds asymmetric.
func nodeSysctls() Sysctls {
	return Sysctls{
		"net/ipv4/ip_forward":                "1",
		"net/ipv4/conf/all/rp_filter":        "0",
		"net/ipv4/conf/default/rp_filter":    "0",
		"net/ipv6/conf/all/forwarding":       "1",
		"net/ipv6/conf/default/forwarding":   "1",
		"net/ipv6/conf/all/accept_dad":       "0",
		"net/ipv6/conf/default/accept_dad":   "0",
		"net/ipv6/conf/default/disable_ipv6": "0",
	}
}

// podSysctls give clients nearly all ports as source ports, and let endpoints
// bind to addresses that a pod has only by a route.
func podSysctls() Sysctls {
	return Sysctls{
		"net/ipv4/ip_local_port_range":       "1024 65535",
		"net/ipv4/conf/all/rp_filter":        "0",
		"net/ipv4/conf/default/rp_filter":    "0",
		"net/ipv6/conf/all/accept_dad":       "0",
		"net/ipv6/conf/default/accept_dad":   "0",
		"net/ipv6/conf/default/disable_ipv6": "0",
		"net/ipv6/ip_nonlocal_bind":          "1",
	}
}

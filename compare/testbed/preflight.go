// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Preflight says in one line why the testbed cannot work here, and what to do.
// programs are the commands that the caller is going to need.
func Preflight(programs ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("not root: network namespaces need it; run again with sudo")
	}
	if _, err := os.Stat("/proc/self/ns/net"); err != nil {
		return errors.New("this kernel has no network namespaces: it needs CONFIG_NET_NS")
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return errors.New("IPv6 is switched off in this kernel, perhaps by ipv6.disable=1 on its command line: both families are needed")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the program %s is missing: install it, for example with apt-get install %s", program, packageOf(program))
		}
	}
	return nil
}

// packageOf names the Debian package of a program.
func packageOf(program string) string {
	switch program {
	case "nft":
		return "nftables"
	case "ip":
		return "iproute2"
	default:
		return program
	}
}

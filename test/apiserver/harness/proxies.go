// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"path/filepath"
)

// Veridict starts bin/veridict run for a user of the API server at url.
func (c *ControlPlane) Veridict(program, user, url string, flags ...string) (*Program, error) {
	kubeconfig, err := c.Kubeconfig(user, url)
	if err != nil {
		return nil, err
	}
	return start(c.dir, "veridict", program, append([]string{
		"run", "--kubeconfig", kubeconfig, "--node-name", NodeName, "--cluster-cidr", PodCIDR,
		"--socket", filepath.Join(c.dir, "veridict.sock"), "--conntrack-max-per-core", "0",
	}, flags...)...)
}

// KubeProxy starts the real one in nftables mode.
func (c *ControlPlane) KubeProxy(flags ...string) (*Program, error) {
	kubeconfig, err := c.Kubeconfig(KubeProxyUser, URL)
	if err != nil {
		return nil, err
	}
	return start(c.dir, "kube-proxy", filepath.Join(c.programs, "kube-proxy"), append([]string{
		"--proxy-mode", "nftables", "--kubeconfig", kubeconfig, "--hostname-override", NodeName, "--cluster-cidr", PodCIDR,
		"--conntrack-max-per-core", "0", "--conntrack-min", "0",
	}, flags...)...)
}

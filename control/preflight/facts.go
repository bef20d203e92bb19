// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package preflight

import "github.com/veridict/veridict/dataplane"

// Facts are what is so on a node. An error says that something cannot be had, in one
// line.
type Facts struct {
	// Capabilities are the effective ones of the process, without CAP_.
	Capabilities []string
	// Kernel is what uname -r prints.
	Kernel string
	// NFTables is why nftables cannot be programmed, nil if it can; NFT is the version of
	// the program, as it prints it.
	NFTables error
	NFT      string
	// Rules is, for each family, why the kernel does not take the rules, nil if it does.
	// It is not filled in where NFTables is not nil.
	Rules map[dataplane.Family]error
	// Observation is why the kernel cannot be observed, nil if it can. ObserveOff says that
	// it is not wanted, ObserveRequired that veridict ends without it.
	Observation                 error
	ObserveOff, ObserveRequired bool
	// ProbeMode is how it would be observed.
	ProbeMode string
	// BPFFS says that a BPF file system is at PinPath, which is empty if nothing is to be
	// pinned.
	PinPath string
	BPFFS   bool
	// Connections are the tracked ones and MaxConnections their limit, 0 where the kernel
	// does not track.
	Connections, MaxConnections int
	// Sysctls are settings below /proc/sys by their path there, without those that do not
	// exist.
	Sysctls map[string]string
	// HasIPv6 says that an interface has a global IPv6 address, HasBridge that there is a
	// bridge.
	HasIPv6, HasBridge bool
	// Processes are the names of all running programs.
	Processes []string
	// Tables are those of nftables of other programs, "ip name"; NATChains are base chains
	// of theirs that translate destinations, "ip name chain".
	Tables, NATChains []string
	// KubeChains says that iptables-nft has chains of kube-proxy, LegacyNAT that
	// iptables-legacy has a NAT table, IPVS that kube-proxy's ipvs interface is there.
	KubeChains, LegacyNAT, IPVS bool
	// NFTablesService says that nftables.service is enabled, which flushes all tables when
	// it starts.
	NFTablesService bool
	// Running is the error of another veridict in this network namespace, nil if there is
	// none.
	Running error
	// Ports are the addresses that veridict listens on, with why it cannot.
	Ports map[string]error
	// NodeName is this node's.
	NodeName string
	// APIServer says what came of asking it; nil where none is configured.
	APIServer *APIServer
}

// APIServer is what came of reading all objects once.
type APIServer struct {
	Err      error
	Services int
	// HasNode says that there is a Node of the node's name.
	HasNode bool
}

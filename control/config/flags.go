// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Flags holds what stands on the command line.
type Flags struct {
	set              *pflag.FlagSet
	configFile       string
	nodeName         string
	hostnameOverride string
	layout           string
	proxyMode        string
	clusterCIDR      string
	detectLocalMode  string
	bridgeInterface  string
	interfacePrefix  string
	masqueradeAll    bool
	syncPeriod       time.Duration
	minSyncPeriod    time.Duration
	network          networkFlags
	observe          observeFlags
	metrics          metricsFlags
	client           clientFlags
	process          processFlags
	effective        effective
}

// networkFlags are those about addresses and connection tracking.
type networkFlags struct {
	nodePortAddresses  []string
	bindAddress        string
	localhostNodePorts bool
	maxPerCore, min    int32

	tcpEstablished, tcpCloseWait time.Duration
	tcpBeLiberal                 bool
	udp, udpStream               time.Duration
}

func (f *networkFlags) add(set *pflag.FlagSet) {
	set.StringSliceVar(&f.nodePortAddresses, "nodeport-addresses", nil,
		"which addresses take NodePorts: `CIDRs`, primary, localhost or all (default primary)")
	set.StringVar(&f.bindAddress, "bind-address", "", "`IP` of the node (default that of the Node object)")
	set.BoolVar(&f.localhostNodePorts, "localhost-nodeports", false,
		"answer NodePorts on the loopback addresses of --nodeport-addresses (TCP; UDP where BPF programs can), reject all others there")
	set.Int32Var(&f.maxPerCore, "conntrack-max-per-core", defaultMaxPerCore, "tracked connections per CPU, 0 leaves the limit as it is")
	set.Int32Var(&f.min, "conntrack-min", defaultMinConntrack, "least limit of tracked connections")
	set.DurationVar(&f.tcpEstablished, "conntrack-tcp-timeout-established", defaultTCPEstablished, "timeout of idle TCP connections, 0 leaves it as it is")
	set.DurationVar(&f.tcpCloseWait, "conntrack-tcp-timeout-close-wait", defaultTCPCloseWait, "timeout of TCP connections in CLOSE_WAIT, 0 leaves it as it is")
	set.BoolVar(&f.tcpBeLiberal, "conntrack-tcp-be-liberal", false, "take TCP packets outside the window for valid")
	set.DurationVar(&f.udp, "conntrack-udp-timeout", 0, "timeout of UDP flows without an answer, 0 leaves it as it is")
	set.DurationVar(&f.udpStream, "conntrack-udp-timeout-stream", 0, "timeout of UDP flows, 0 leaves it as it is")
}

func (f *networkFlags) bindings() []binding {
	return []binding{
		bind("nodeport-addresses", func(in *fileConfig) *[]string { return &in.NodePortAddresses }, &f.nodePortAddresses),
		bind("bind-address", func(in *fileConfig) *string { return &in.BindAddress }, &f.bindAddress),
		bindPointer("conntrack-max-per-core", func(in *fileConfig) **int32 { return &in.Conntrack.MaxPerCore }, &f.maxPerCore),
		bindPointer("conntrack-min", func(in *fileConfig) **int32 { return &in.Conntrack.Min }, &f.min),
		bindTimeout("conntrack-tcp-timeout-established",
			func(in *fileConfig) **metav1.Duration { return &in.Conntrack.TCPEstablishedTimeout }, &f.tcpEstablished),
		bindTimeout("conntrack-tcp-timeout-close-wait",
			func(in *fileConfig) **metav1.Duration { return &in.Conntrack.TCPCloseWaitTimeout }, &f.tcpCloseWait),
		bind("conntrack-tcp-be-liberal", func(in *fileConfig) *bool { return &in.Conntrack.TCPBeLiberal }, &f.tcpBeLiberal),
		bindDuration("conntrack-udp-timeout", func(in *fileConfig) *metav1.Duration { return &in.Conntrack.UDPTimeout }, &f.udp),
		bindDuration("conntrack-udp-timeout-stream", func(in *fileConfig) *metav1.Duration { return &in.Conntrack.UDPStreamTimeout }, &f.udpStream),
	}
}

// AddFlags adds the flags to a set. Those that kube-proxy has carry its names.
func AddFlags(set *pflag.FlagSet) *Flags {
	f := &Flags{set: set}
	set.StringVar(&f.configFile, "config", "", "KubeProxyConfiguration `file`; flags go before what it says")
	set.StringVar(&f.nodeName, "node-name", "", "`name` of this node (default --hostname-override, or the host's name)")
	set.StringVar(&f.layout, "layout", "", "kernel layout: markfree or ctmark (default markfree)")
	set.StringVar(&f.hostnameOverride, "hostname-override", "", "`name` of this node instead of the host's name")
	set.StringVar(&f.proxyMode, "proxy-mode", "", "nftables, or empty; kube-proxy's other modes are taken for it")
	set.StringVar(&f.clusterCIDR, "cluster-cidr", "", "`CIDR` of the pods, or one per family separated by a comma")
	set.StringVar(&f.detectLocalMode, "detect-local-mode", "",
		"how to recognise local pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix (default ClusterCIDR)")
	set.StringVar(&f.bridgeInterface, "pod-bridge-interface", "", "bridge `interface` of the pods, for --detect-local-mode BridgeInterface")
	set.StringVar(&f.interfacePrefix, "pod-interface-name-prefix", "",
		"`prefix` of the names of the pods' interfaces, for --detect-local-mode InterfaceNamePrefix")
	set.BoolVar(&f.masqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	set.DurationVar(&f.syncPeriod, "iptables-sync-period", defaultSyncPeriod, "longest pause before a failed sync is tried again")
	set.DurationVar(&f.minSyncPeriod, "iptables-min-sync-period", defaultMinSyncPeriod, "least pause between two syncs")
	f.network.add(set)
	f.observe.add(set)
	f.metrics.add(set)
	f.client.add(set)
	f.process.add(set)
	return f
}

// Load makes the configuration. Warnings are for the log. hostname is asked
// for the node's name where nothing else tells. The error is an [Invalid] where
// the input is to blame.
func (f *Flags) Load(hostname func() (string, error)) (Config, []string, error) {
	var warnings []string
	in, own, where := fileConfig{}, veridictConfiguration{}, "flags"
	if f.configFile != "" {
		where = f.configFile
		var err error
		if in, own, err = readFile(f.configFile); err != nil {
			return Config{}, nil, err
		}
	}
	if names := f.override(&in); len(names) > 0 {
		warnings = append(warnings, fmt.Sprintf("these flags override what %s says: %s", f.configFile, strings.Join(names, ", ")))
	}
	if fields := ignored(&in); len(fields) > 0 {
		warnings = append(warnings, "these settings of kube-proxy have no meaning here and are ignored: "+strings.Join(fields, ", "))
	}
	if f.hostnameOverride != "" {
		in.HostnameOverride = f.hostnameOverride
	}
	if f.nodeName != "" {
		in.HostnameOverride = f.nodeName
	}
	if f.layout != "" {
		own.Layout = Layout(f.layout)
	}
	f.observe.override(&own.Observe)
	f.metrics.override(&own.Metrics)
	own.LocalhostNodePorts = own.LocalhostNodePorts || f.network.localhostNodePorts
	if strings.TrimSpace(in.HostnameOverride) == "" {
		name, err := hostname()
		if err != nil {
			return Config{}, nil, fmt.Errorf("find the node's name (give --node-name): %w", err)
		}
		in.HostnameOverride = name
	}
	setDefaults(&in, &own)
	config, mistakes := check(&in, &own)
	if len(mistakes) > 0 {
		return Config{}, nil, &Invalid{Where: where, Mistakes: mistakes}
	}
	config.Client.Master = f.client.master
	f.effective = effective{in, own}
	return config, warnings, nil
}

// effective is the configuration that came of files, flags and defaults.
type effective struct {
	KubeProxy fileConfig            `json:"kubeproxy.config.k8s.io"`
	Own       veridictConfiguration `json:"veridict.dev"`
}

// Effective returns the configuration that Load has made as a JSON object, with the
// fields of a file below the name of their API group, as kube-proxy shows it.
func (f *Flags) Effective() []byte {
	// Types that were read from JSON can be written.
	text, _ := json.MarshalIndent(f.effective, "", "  ")
	return text
}

// bindings are the fields of a file that flags stand for.
func (f *Flags) bindings() []binding {
	return slices.Concat([]binding{
		bind("proxy-mode", func(in *fileConfig) *string { return (*string)(&in.Mode) }, &f.proxyMode),
		bind("cluster-cidr", func(in *fileConfig) *string { return &in.ClusterCIDR }, &f.clusterCIDR),
		bind("detect-local-mode", func(in *fileConfig) *string { return (*string)(&in.DetectLocalMode) }, &f.detectLocalMode),
		bind("pod-bridge-interface", func(in *fileConfig) *string { return &in.DetectLocal.BridgeInterface }, &f.bridgeInterface),
		bind("pod-interface-name-prefix", func(in *fileConfig) *string { return &in.DetectLocal.InterfaceNamePrefix }, &f.interfacePrefix),
		bind("masquerade-all", func(in *fileConfig) *bool { return &in.NFTables.MasqueradeAll }, &f.masqueradeAll),
		bindDuration("iptables-sync-period", func(in *fileConfig) *metav1.Duration { return &in.NFTables.SyncPeriod }, &f.syncPeriod),
		bindDuration("iptables-min-sync-period", func(in *fileConfig) *metav1.Duration { return &in.NFTables.MinSyncPeriod }, &f.minSyncPeriod),
	}, f.network.bindings(), f.metrics.bindings(), f.client.bindings(), f.process.bindings())
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"

	"github.com/spf13/pflag"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// Metrics says where and how metrics are served.
type Metrics struct {
	// Address is host:port; empty if metrics are not served.
	Address string
	// HardFail ends veridict if it cannot listen on the address; otherwise it tries
	// again.
	HardFail bool
	// Profiling serves /debug/pprof, too.
	Profiling bool
	// ServiceLimit and EndpointLimit are how many Services and endpoints have series
	// of their own at most.
	ServiceLimit, EndpointLimit int
}

const (
	// metricsPort is kube-proxy's.
	metricsPort         = 10249
	defaultMetricsLimit = 1000
	largestMetricsLimit = 1000000

	flagMetricsAddress = "metrics-bind-address"
	flagHardFail       = "bind-address-hard-fail"
)

// metricsConfiguration is the part of a file that kube-proxy does not have.
type metricsConfiguration struct {
	ServiceLimit  *int `json:"serviceLimit,omitempty"`
	EndpointLimit *int `json:"endpointLimit,omitempty"`
}

func setMetricsDefaults(in *kubeproxy.KubeProxyConfiguration, own *metricsConfiguration) {
	if in.MetricsBindAddress == "" {
		host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if bind, err := netip.ParseAddr(in.BindAddress); err == nil && bind.Is6() {
			host = netip.IPv6Loopback()
		}
		in.MetricsBindAddress = netip.AddrPortFrom(host, metricsPort).String()
	}
	setDefault(&own.ServiceLimit, defaultMetricsLimit)
	setDefault(&own.EndpointLimit, defaultMetricsLimit)
}

type metricsFlags struct {
	set                         *pflag.FlagSet
	address                     string
	hardFail, profiling         bool
	serviceLimit, endpointLimit int
}

func (f *metricsFlags) add(set *pflag.FlagSet) {
	f.set = set
	set.StringVar(&f.address, flagMetricsAddress, "127.0.0.1:10249",
		"`address` and port to serve metrics on, empty or 0 for none; [::1]:10249 is the default with an IPv6 --bind-address")
	set.BoolVar(&f.hardFail, flagHardFail, false, "end if a port cannot be listened on, instead of trying again")
	set.BoolVar(&f.profiling, "profiling", false, "serve /debug/pprof on the address of the metrics")
	set.IntVar(&f.serviceLimit, "metrics-service-limit", defaultMetricsLimit, "how many Services have metrics of their own; the others are summed")
	set.IntVar(&f.endpointLimit, "metrics-endpoint-limit", defaultMetricsLimit, "how many endpoints have metrics of their own; the others are summed")
}

func (f *metricsFlags) bindings() []binding {
	return []binding{
		bind(flagHardFail, func(in *fileConfig) *bool { return &in.BindAddressHardFail }, &f.hardFail),
		bindAddress(flagMetricsAddress, func(in *fileConfig) *string { return &in.MetricsBindAddress }, &f.address),
		bind("profiling", func(in *fileConfig) *bool { return &in.EnableProfiling }, &f.profiling),
	}
}

func (f *metricsFlags) override(own *metricsConfiguration) {
	if f.set.Changed("metrics-service-limit") {
		own.ServiceLimit = &f.serviceLimit
	}
	if f.set.Changed("metrics-endpoint-limit") {
		own.EndpointLimit = &f.endpointLimit
	}
}

func (c *checker) metrics(in *kubeproxy.KubeProxyConfiguration, own *metricsConfiguration) Metrics {
	for _, limit := range []struct {
		field string
		value int
	}{{"metrics.serviceLimit", *own.ServiceLimit}, {"metrics.endpointLimit", *own.EndpointLimit}} {
		if limit.value < 0 || limit.value > largestMetricsLimit {
			c.add(limit.field, "%d is not between 0 and %d", limit.value, largestMetricsLimit)
		}
	}
	return Metrics{
		Address:  c.serveAddress("metricsBindAddress", in.MetricsBindAddress, metricsPort),
		HardFail: in.BindAddressHardFail, Profiling: in.EnableProfiling,
		ServiceLimit: *own.ServiceLimit, EndpointLimit: *own.EndpointLimit,
	}
}

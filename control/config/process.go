// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
)

// Log says how the log is written.
type Log struct {
	// JSON writes each line as an object; otherwise lines are key=value.
	JSON bool
	// Verbosity is that of Kubernetes: from [DebugVerbosity] on there are details.
	Verbosity int
}

// DebugVerbosity is from where on the log has details.
const DebugVerbosity = 4

const (
	// healthzPort is kube-proxy's.
	healthzPort        = 10256
	defaultHealthz     = "0.0.0.0:10256"
	defaultOOMScoreAdj = -999

	// serveNowhere is an address that says not to serve. kube-proxy has none in a
	// file: its empty one stands for the default.
	serveNowhere = "0"

	logText = "text"
	logJSON = "json"
)

func setProcessDefaults(in *fileConfig) {
	if in.HealthzBindAddress == "" {
		in.HealthzBindAddress = defaultHealthz
		if bind, err := netip.ParseAddr(in.BindAddress); err == nil && bind.Is6() {
			in.HealthzBindAddress = netip.AddrPortFrom(netip.IPv6Unspecified(), healthzPort).String()
		}
	}
	setDefault(&in.OOMScoreAdj, int32(defaultOOMScoreAdj))
	if in.Logging.Format == "" {
		in.Logging.Format = logText
	}
}

// processFlags are those about the process itself.
type processFlags struct {
	healthz   string
	oomScore  int32
	logFormat string
}

func (f *processFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.healthz, "healthz-bind-address", defaultHealthz, "`address` and port to serve /healthz, /livez and /readyz on, empty or 0 for none")
	set.Int32Var(&f.oomScore, "oom-score-adj", defaultOOMScoreAdj, "how little the kernel minds killing this process for its memory, -1000 to 1000")
	set.StringVar(&f.logFormat, "logging-format", logText, "log `format`: text or json")
}

func (f *processFlags) bindings() []binding {
	return []binding{
		bindAddress("healthz-bind-address", func(in *fileConfig) *string { return &in.HealthzBindAddress }, &f.healthz),
		bindPointer("oom-score-adj", func(in *fileConfig) **int32 { return &in.OOMScoreAdj }, &f.oomScore),
		bind("logging-format", func(in *fileConfig) *string { return &in.Logging.Format }, &f.logFormat),
	}
}

func (c *checker) setProcess(config *Config, in *fileConfig) {
	config.Healthz = c.serveAddress("healthzBindAddress", in.HealthzBindAddress, healthzPort)
	config.OOMScoreAdj = int(*in.OOMScoreAdj)
	if config.OOMScoreAdj < -1000 || config.OOMScoreAdj > 1000 {
		c.add("oomScoreAdj", "%d is not between -1000 and 1000", config.OOMScoreAdj)
	}
	if !slices.Contains([]string{logText, logJSON}, in.Logging.Format) {
		c.add("logging.format", "%q is not %s or %s", in.Logging.Format, logText, logJSON)
	}
	config.Log = Log{JSON: in.Logging.Format == logJSON, Verbosity: int(in.Logging.Verbosity)}
}

// serveAddress takes an IP alone, too, and adds the port, as kube-proxy does.
func (c *checker) serveAddress(field, text string, defaultPort int) string {
	if text == serveNowhere {
		return ""
	}
	host, port, err := net.SplitHostPort(text)
	if addr, alone := netip.ParseAddr(text); alone == nil {
		host, port, err = addr.String(), strconv.Itoa(defaultPort), nil
	}
	addr, badHost := netip.ParseAddr(host)
	number, badPort := strconv.ParseUint(port, 10, 16)
	if err != nil || badHost != nil || badPort != nil || number == 0 {
		c.add(field, "%q is not an IP and a port", text)
		return ""
	}
	return netip.AddrPortFrom(addr, uint16(number)).String()
}

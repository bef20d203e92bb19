// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/config"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	standard := func(change func(*config.Metrics)) config.Metrics {
		m := defaults(nil).Metrics
		change(&m)
		return m
	}
	address := func(text string) config.Metrics {
		return standard(func(m *config.Metrics) { m.Address = text })
	}
	tests := []struct {
		name, file string
		args       []string
		want       config.Metrics
	}{
		{name: "an empty address in a file", file: header + "metricsBindAddress: \"\"\n", want: address("127.0.0.1:10249")},
		{name: "an IPv6 bind address", file: header + "bindAddress: \"::\"\n", want: address("[::1]:10249")},
		{name: "an IPv6 bind address by flag", args: []string{"--bind-address=fd00::1"}, want: address("[::1]:10249")},
		{name: "an address in a file", file: header + "metricsBindAddress: 0.0.0.0:9000\n", want: address("0.0.0.0:9000")},
		{name: "an address without a port", file: header + "metricsBindAddress: 0.0.0.0\n", want: address("0.0.0.0:10249")},
		{name: "an IPv6 address without a port", args: []string{"--metrics-bind-address=::"}, want: address("[::]:10249")},
		{name: "off by flag", args: []string{"--metrics-bind-address="}, want: address("")},
		{name: "off by flag, 0", args: []string{"--metrics-bind-address=0"}, want: address("")},
		{name: "off in a file", file: header + "metricsBindAddress: \"0\"\n", want: address("")},
		{
			name: "hard fail", args: []string{"--bind-address-hard-fail"},
			want: standard(func(m *config.Metrics) { m.HardFail = true }),
		},
		{
			name: "limits by flag before those of the file", args: []string{"--metrics-service-limit=0"},
			file: header + "bindAddressHardFail: true\n" + ownHeader + "metrics: {serviceLimit: 5, endpointLimit: 7}\n",
			want: standard(func(m *config.Metrics) { m.HardFail, m.ServiceLimit, m.EndpointLimit = true, 0, 7 }),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, _, err := load(t, test.file, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Metrics); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMetricsMistakes(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"localhost:1": `metricsBindAddress: "localhost:1" is not an IP and a port`,
		":10249":      `metricsBindAddress: ":10249" is not an IP and a port`,
		"127.0.0.1:0": `metricsBindAddress: "127.0.0.1:0" is not an IP and a port`,
		"::1:99999":   `metricsBindAddress: "::1:99999" is not an IP and a port`,
	} {
		_, _, err := load(t, "", "--metrics-bind-address="+address, "--metrics-endpoint-limit=-1")
		invalid, ok := errors.AsType[*config.Invalid](err)
		if !ok {
			t.Fatalf("error %v, want an Invalid", err)
		}
		mistakes := []string{"metrics.endpointLimit: -1 is not between 0 and 1000000", want}
		if diff := cmp.Diff(mistakes, invalid.Mistakes); diff != "" {
			t.Errorf("mistakes (-want +got):\n%s", diff)
		}
	}
}

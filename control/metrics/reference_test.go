// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update", false, "write golden files")

// golden compares text with a file, or writes it.
func golden(tb testing.TB, path, text string) {
	tb.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), text); diff != "" {
		tb.Errorf("%s (-want +got); go test ./control/metrics -update writes it:\n%s", path, diff)
	}
}

func gather(tb testing.TB, gatherer prometheus.Gatherer) []*dto.MetricFamily {
	tb.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	return families
}

// isForeign says whether the metric is one of the Prometheus library.
func isForeign(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_")
}

const referenceHead = `# Metrics

Generated from the code by ` + "`go test ./control/metrics -update`" + `; a test compares them.

` + "`veridict run`" + ` serves them at ` + "`/metrics`" + ` on the ` + "`metricsBindAddress`" + ` of the configuration, by default
127.0.0.1:10249, as kube-proxy does, as text, OpenMetrics or protobuf. Histograms have classic buckets
and, in protobuf, native ones. A scrape asks nothing of the kernel.

- Metrics that begin with ` + "`kubeproxy_`" + ` mean what kube-proxy's mean. One sync programs both IP families: it
  counts for each that it changed something of, and nothing but the removal of what is no longer used
  counts for none.
- The Go library adds ` + "`go_*`, `process_*` and `promhttp_*`" + `.
- Metrics of Services and endpoints are there while the probes in the kernel are (` + "`veridict_probes_info`" + `),
  and only for those that were selected on this node. ` + "`--metrics-service-limit` and `--metrics-endpoint-limit`" + `
  bound how many have series of their own; the connections of all others, and those of endpoints that are gone, are in the series
  whose ` + "`service` is `_other`" + `. A series stays until its Service, or endpoint, is gone. The sum of all series of a
  metric counts every connection once.
- ` + "`pool` is `cluster`" + `, or ` + "`local`" + ` for the endpoints of traffic policy Local.
- The bounds of the kernel's histograms are powers of two of nanoseconds; those of their native buckets,
  powers of two of seconds, are 7 % lower. The last bucket has everything above 1.07 s.
`

// TestReference keeps docs/metrics.md equal to the code.
func TestReference(t *testing.T) {
	t.Parallel()
	_, registry := example(t)
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, part := range []struct{ title, prefix string }{
		{"Metrics of kube-proxy", "kubeproxy_"}, {"Metrics of veridict", "veridict_"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| name | type | labels | |\n|---|---|---|---|\n", part.title)
		for _, family := range gather(t, registry) {
			if strings.HasPrefix(family.GetName(), part.prefix) {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", family.GetName(),
					strings.ToLower(family.GetType().String()), labelsOf(family), family.GetHelp())
			}
		}
	}
	golden(t, "../../docs/metrics.md", b.String())
}

func labelsOf(family *dto.MetricFamily) string {
	var names []string
	for _, metric := range family.GetMetric() {
		for _, label := range metric.GetLabel() {
			names = append(names, label.GetName())
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	return strings.Join(slices.Compact(names), ", ")
}

// rank puts labels in the order in which one reads them.
func rank(label string) int {
	order := []string{"namespace", "service", "port", "protocol"}
	if at := slices.Index(order, label); at >= 0 {
		return at
	}
	return len(order)
}

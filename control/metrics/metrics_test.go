// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"log/slog"
	"testing"

	"github.com/veridict/veridict/control/metrics"
)

func newMetrics(tb testing.TB, o metrics.Options) *metrics.Metrics {
	tb.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := metrics.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes is how many are answered at the same time.
const maxScrapes = 4

// Handler answers in the format that is asked for: text, OpenMetrics or protobuf, the
// one that has native histograms.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.o.Registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(m.o.Logger.Handler(), slog.LevelError),
		// What can be collected is worth more than nothing.
		ErrorHandling: promhttp.ContinueOnError, Registry: m.o.Registry,
		MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true,
	})
}

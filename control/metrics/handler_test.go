// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/veridict/veridict/control/metrics"
	"github.com/veridict/veridict/control/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scrape returns the answer in the format that is asked for.
func scrape(tb testing.TB, handler http.Handler, accept string) *http.Response {
	tb.Helper()
	request := httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", accept)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	response := recorder.Result()
	if response.StatusCode != http.StatusOK {
		tb.Fatalf("status %s", response.Status)
	}
	return response
}

func TestFormatsParse(t *testing.T) {
	t.Parallel()
	m, registry := example(t)
	want := len(gather(t, registry))

	text := scrape(t, m.Handler(), "text/plain")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text.Body)
	// What the handler counts about itself comes on top.
	if err != nil || len(families) < want {
		t.Errorf("text: %d metrics, want %d or more; %v", len(families), want, err)
	}

	open, err := io.ReadAll(scrape(t, m.Handler(), "application/openmetrics-text; version=1.0.0").Body)
	if err != nil || !strings.HasSuffix(string(open), "\n# EOF\n") ||
		!strings.Contains(string(open), "\n# TYPE veridict_service_selections counter\n") {
		t.Errorf("OpenMetrics: %v\n%s", err, open)
	}

	binary := scrape(t, m.Handler(), string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	decoder := expfmt.NewDecoder(binary.Body, expfmt.ResponseFormat(binary.Header))
	n := 0
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		n++
		if family.GetName() == "veridict_first_packet_duration_seconds" {
			checkNative(t, family.GetMetric()[0].GetHistogram())
		}
	}
	if n < want {
		t.Errorf("protobuf: %d metrics, want %d or more", n, want)
	}
}

// checkNative compares both kinds of buckets of 50 ns, 1.5 µs and 2 s.
func checkNative(t *testing.T, h *dto.Histogram) {
	t.Helper()
	if h.GetSampleCount() != 3 || len(h.GetPositiveSpan()) != 1 {
		t.Fatalf("histogram %v", h)
	}
	native := map[int32]int64{}
	count, at := int64(0), h.GetPositiveSpan()[0].GetOffset()
	for _, delta := range h.GetPositiveDelta() {
		count += delta
		if count != 0 {
			native[at] = count
		}
		at++
	}
	// Upper bounds: 2^-24 s = 60 ns, 2^-19 s = 1.9 µs, 2^1 s.
	if diff := cmp.Diff(map[int32]int64{-24: 1, -19: 1, 1: 1}, native); diff != "" || h.GetSchema() != 0 {
		t.Errorf("native buckets of schema %d (-want +got):\n%s", h.GetSchema(), diff)
	}
	classic := map[string]uint64{}
	before := uint64(0)
	for _, bucket := range h.GetBucket() {
		if bucket.GetCumulativeCount() > before {
			before = bucket.GetCumulativeCount()
			classic[fmt.Sprintf("%.3g", bucket.GetUpperBound())] = before
		}
	}
	if diff := cmp.Diff(map[string]uint64{"6.4e-08": 1, "2.05e-06": 2}, classic); diff != "" {
		t.Errorf("classic buckets (-want +got):\n%s", diff)
	}
}

// TestScrapesDuringSyncs is for the race detector.
func TestScrapesDuringSyncs(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	next := smallSnapshot()
	snapshots := snapshotFunc(func() *observe.Snapshot {
		mu.Lock()
		defer mu.Unlock()
		s := *next
		s.At = s.At.Add(time.Second)
		next = &s
		return next
	})
	registry := prometheus.NewRegistry()
	m := newMetrics(t, metrics.Options{Registry: registry, Snapshots: snapshots, ServiceLimit: 1, EndpointLimit: 1})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				if _, err := registry.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Go(func() {
		for range 20 {
			tell(m)
		}
	})
	group.Wait()
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/veridict/veridict/control/metrics"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// The largest cluster that speed is promised for.
const (
	manyServices     = 20000
	endpointsPerPort = 11
)

// turns returns the snapshots in turns, so that each scrape finds a new one.
type turns struct {
	snapshots []*observe.Snapshot
	next      int
}

func (s *turns) Snapshot() *observe.Snapshot {
	s.next++
	return s.snapshots[s.next%len(s.snapshots)]
}

// largeSnapshot has connections to every endpoint.
func largeSnapshot(at time.Time, extra uint64) *observe.Snapshot {
	s := &observe.Snapshot{At: at, Probes: observe.ProbeStatus{Mode: observe.Netfilter}}
	for i := range manyServices {
		service := &observe.Service{
			Key: dataplane.ServicePortKey{ServicePortName: dataplane.ServicePortName{
				Namespace: fmt.Sprintf("namespace-%d", i%100), Name: fmt.Sprintf("service-%d", i), Port: "http", Protocol: dataplane.TCP,
			}, Family: dataplane.IPv4},
		}
		pool := observe.Pool{Evenness: observe.Evenness{N: 100, LogE: -1}}
		for j := range endpointsPerPort {
			total := uint64(i+j) + extra
			service.Drawn += total
			pool.Endpoints = append(pool.Endpoints, observe.Endpoint{
				Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)}), 8080),
				Total: total,
			})
		}
		service.Pools = []observe.Pool{pool}
		s.Services = append(s.Services, service)
	}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		for _, hook := range []observe.Hook{observe.Prerouting, observe.Output} {
			for _, outcome := range []observe.Outcome{observe.Translated, observe.Missed, observe.Foreign} {
				s.Latencies = append(s.Latencies, observe.Latency{Family: family, Hook: hook, Outcome: outcome})
			}
		}
	}
	return s
}

// BenchmarkScrape is one scrape of 20,000 Services with 220,000 endpoints, all of
// which were selected, with the default limits. The aim is at most 50 ms.
func BenchmarkScrape(b *testing.B) {
	start := time.Unix(1000, 0)
	source := &turns{}
	for i := range 2 {
		source.snapshots = append(source.snapshots, largeSnapshot(start, uint64(i)))
	}
	m := newMetrics(b, metrics.Options{
		Snapshots: source, ServiceLimit: metrics.DefaultLimit, EndpointLimit: metrics.DefaultLimit,
	})
	handler := m.Handler()
	for _, format := range []struct{ name, accept string }{
		{"text", "text/plain"},
		{"openmetrics", "application/openmetrics-text; version=1.0.0"},
		{"protobuf", "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"},
	} {
		b.Run(format.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				request := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/metrics", nil)
				request.Header.Set("Accept", format.accept)
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, request)
				if recorder.Code != http.StatusOK {
					b.Fatalf("status %d: %s", recorder.Code, recorder.Body)
				}
				if n, _ := io.Copy(io.Discard, recorder.Body); n == 0 {
					b.Fatal("an empty answer")
				}
			}
		})
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/veridict/veridict/control/metrics"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// The largest cluster that speed is promised for.
const (
	manyServices     = 20000
	endpointsPerPort = 11
)

// largeSnapshot has connections to every endpoint.
func largeSnapshot() *observe.Snapshot {
	s := &observe.Snapshot{At: time.Unix(1000, 0), Probes: observe.ProbeStatus{Mode: observe.Netfilter}}
	for i := range manyServices {
		service := &observe.Service{
			Key: dataplane.ServicePortKey{ServicePortName: dataplane.ServicePortName{
				Namespace: fmt.Sprintf("namespace-%d", i%100), Name: fmt.Sprintf("service-%d", i), Port: "http", Protocol: dataplane.TCP,
			}, Family: dataplane.IPv4},
		}
		pool := observe.Pool{Evenness: observe.Evenness{N: 100, LogE: -1}}
		for j := range endpointsPerPort {
			pool.Endpoints = append(pool.Endpoints, observe.Endpoint{
				Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)}), 8080),
				Total: uint64(i + j),
			})
			service.Drawn += uint64(i + j)
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

// grown returns the snapshot with one more connection to every endpoint.
func grown(s *observe.Snapshot) *observe.Snapshot {
	next := *s
	next.At = s.At.Add(time.Second)
	next.Services = make([]*observe.Service, len(s.Services))
	for i, before := range s.Services {
		service := *before
		service.Drawn += endpointsPerPort
		service.Pools = slices.Clone(before.Pools)
		service.Pools[0].Endpoints = slices.Clone(before.Pools[0].Endpoints)
		for j := range service.Pools[0].Endpoints {
			service.Pools[0].Endpoints[j].Total++
		}
		next.Services[i] = &service
	}
	return &next
}

func benchmarkScrape(b *testing.B, s *observe.Snapshot, accept string, fresh bool) {
	var handler http.Handler
	start := func() {
		handler = newMetrics(b, metrics.Options{
			Snapshots:    snapshotFunc(func() *observe.Snapshot { return s }),
			ServiceLimit: metrics.DefaultLimit, EndpointLimit: metrics.DefaultLimit,
		}).Handler()
	}
	start()
	if !fresh {
		_ = scrape(b, handler, accept)
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		s = grown(s)
		if fresh {
			start()
		}
		b.StartTimer()
		if n, err := io.Copy(io.Discard, scrape(b, handler, accept).Body); err != nil || n == 0 {
			b.Fatalf("%d bytes, %v", n, err)
		}
	}
}

// BenchmarkScrape is one scrape of 20,000 Services with 220,000 endpoints, all of
// which had a new connection, with the default limits. The aim is at most 50 ms.
func BenchmarkScrape(b *testing.B) {
	s := largeSnapshot()
	protobuf := string(expfmt.NewFormat(expfmt.TypeProtoDelim))
	b.Run("text", func(b *testing.B) { benchmarkScrape(b, s, "text/plain", false) })
	b.Run("openmetrics", func(b *testing.B) { benchmarkScrape(b, s, "application/openmetrics-text; version=1.0.0", false) })
	b.Run("protobuf", func(b *testing.B) { benchmarkScrape(b, s, protobuf, false) })
	b.Run("first", func(b *testing.B) { benchmarkScrape(b, s, protobuf, true) })
}

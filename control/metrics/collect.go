// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/veridict/veridict/control/observe"
)

// sink sends metrics of one scrape.
type sink chan<- prometheus.Metric

func (s sink) gauge(desc *prometheus.Desc, value float64, labels ...string) {
	s.send(desc, prometheus.GaugeValue, value, labels)
}

func (s sink) counter(desc *prometheus.Desc, value uint64, labels ...string) {
	s.send(desc, prometheus.CounterValue, float64(value), labels)
}

func (s sink) send(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels []string) {
	metric, err := prometheus.NewConstMetric(desc, kind, value, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(desc, err)
	}
	s <- metric
}

func (o *observed) collectProbes(ch sink, s *observe.Snapshot) {
	ch.gauge(o.descs.probes, 1, string(s.Probes.Mode), s.Probes.Reason)
	if s.Probes.Mode == observe.Off {
		return
	}
	ch.gauge(o.descs.readFailing, boolean(s.ReadError != ""))
	ch.gauge(o.descs.capacity, float64(s.Probes.Capacity))
	if !s.At.IsZero() {
		ch.gauge(o.descs.readAt, seconds(s.At))
	}
}

// collectCounts collects what was read from the kernel.
func (o *observed) collectCounts(ch sink, s *observe.Snapshot) {
	for _, loss := range []struct {
		kind  string
		count uint64
	}{
		{"full", s.Losses.Full}, {"unmatched", s.Losses.Unmatched},
		{"retransmitted", s.Losses.Retransmitted}, {"clashed", s.Losses.Clashed},
	} {
		ch.counter(o.descs.losses, loss.count, loss.kind)
	}
	for i := range s.Latencies {
		l := &s.Latencies[i]
		ch <- newHistogram(o.descs.firstPacket, &l.Histogram, l.Family.String(), string(l.Hook), string(l.Outcome))
	}
	ch <- newHistogram(o.descs.firstSelection, &s.Programming)
	ch.counter(o.descs.selections, s.Selections)
	ch.counter(o.descs.foreign, s.Foreign)
	o.collectAlarms(ch, s)
	o.collectServices(ch, s)
}

func (o *observed) collectAlarms(ch sink, s *observe.Snapshot) {
	counts := make(map[observe.AlarmKind]int)
	for _, kind := range alarmKinds() {
		counts[kind] = 0
	}
	for i := range s.Alarms {
		counts[s.Alarms[i].Kind]++
	}
	for kind, count := range counts {
		ch.gauge(o.descs.alarms, float64(count), string(kind))
	}
}

// collectServices collects what has a limit.
func (o *observed) collectServices(ch sink, s *observe.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fold(s)
	ch.counter(o.descs.missed, o.ledger.missed)
	for _, e := range o.ledger.shown {
		ch.counter(o.descs.serviceSelections, e.series, serviceValues(e.service.Key)...)
		o.collectEvenness(ch, e.service)
	}
	ch.counter(o.descs.serviceSelections, o.ledger.serviceRest, otherValues()...)
	for _, e := range o.ledger.services {
		for i := range e.endpoints {
			ch.counter(o.descs.endpointSelections, e.endpoints[i].series,
				serviceValues(e.service.Key, e.endpoints[i].addr.String())...)
		}
	}
	ch.counter(o.descs.endpointSelections, o.ledger.endpointRest, otherValues("")...)
}

func (o *observed) collectEvenness(ch sink, service *observe.Service) {
	for i := range service.Pools {
		pool := &service.Pools[i]
		if pool.Evenness.Untested != "" {
			continue
		}
		name := "cluster"
		if pool.Local {
			name = "local"
		}
		labels := serviceValues(service.Key, name)
		ch.gauge(o.descs.evidence, pool.Evenness.LogE, labels...)
		ch.gauge(o.descs.uneven, boolean(pool.Evenness.Rejected), labels...)
		if pool.Evenness.N > 0 {
			ch.gauge(o.descs.detectable, pool.Evenness.Detectable, labels...)
		}
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// seconds is the time as Prometheus has it.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / float64(time.Second) }

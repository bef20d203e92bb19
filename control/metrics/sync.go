// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/dataplane"
)

// Native buckets as kube-proxy has them.
const (
	nativeFactor     = 1.1
	nativeMaxBuckets = 160
)

// synced holds what is counted from the facts of syncs.
type synced struct {
	// kube-proxy's metrics.
	duration, fullDuration, partialDuration, programming *prometheus.HistogramVec
	lastSync, lastQueued                                 *prometheus.GaugeVec
	failures                                             *prometheus.CounterVec
	serviceChanges, endpointChanges                      prometheus.Counter
	servicesPending, endpointsPending                    prometheus.Gauge
	noLocal                                              *prometheus.GaugeVec

	// Our own.
	transactions, elements, staleFlows, driftRepairs prometheus.Counter
	longestCommit                                    prometheus.Histogram
	programmed                                       *programmed
}

func newSynced() *synced {
	s := &synced{
		duration: kubeHistogram("sync_proxy_rules_duration_seconds",
			"How long it took to program what had changed. A sync of both IP families counts once for each.", syncBuckets()),
		fullDuration: kubeHistogram("sync_full_proxy_rules_duration_seconds",
			"How long it took to program everything: at the start, after a failure, after another process had changed the tables.", syncBuckets()),
		partialDuration: kubeHistogram("sync_partial_proxy_rules_duration_seconds",
			"How long it took to program some changes.", syncBuckets()),
		programming: kubeHistogram("network_programming_duration_seconds",
			"From the change of a Service or Pod, as its EndpointSlice says, to the rules.", programmingBuckets()),
		lastSync:   kubeGauge("sync_proxy_rules_last_timestamp_seconds", "When a sync last succeeded.", labelFamily),
		lastQueued: kubeGauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for.", labelFamily),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: kubeProxy, Name: "sync_proxy_rules_nftables_sync_failures_total", Help: "Syncs that failed.",
		}, []string{labelFamily}),
		serviceChanges:   kubeCounter("sync_proxy_rules_service_changes_total", "Changes of Services that came."),
		endpointChanges:  kubeCounter("sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices that came."),
		servicesPending:  kubeGauge("sync_proxy_rules_service_changes_pending", "Changes of Services that wait for a sync.").WithLabelValues(),
		endpointsPending: kubeGauge("sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that wait for a sync.").WithLabelValues(),
		noLocal: kubeGauge("sync_proxy_rules_no_local_endpoints_total",
			"ServicePorts with a Local traffic policy and no endpoint on this node, though there are others.", "traffic_policy", labelFamily),

		transactions: ownCounter("transactions_total", "Transactions that were sent to the kernel."),
		elements:     ownCounter("elements_sent_total", "Elements of sets and maps that were added and deleted."),
		staleFlows:   ownCounter("stale_flows_removed_total", "Connections that were removed from connection tracking since their endpoint does not serve any more."),
		driftRepairs: ownCounter("drift_repairs_total", "Times that everything was programmed again since another process had changed the tables."),
		longestCommit: prometheus.NewHistogram(histogramOpts(own, "sync_longest_commit_duration_seconds",
			"The longest transaction of each sync: so long may others have waited for nftables.", syncBuckets())),
		programmed: newProgrammed(),
	}
	for _, family := range families() {
		for _, vec := range []*prometheus.HistogramVec{s.duration, s.fullDuration, s.partialDuration, s.programming} {
			vec.WithLabelValues(family.String())
		}
		s.failures.WithLabelValues(family.String())
	}
	return s
}

func families() []dataplane.Family { return []dataplane.Family{dataplane.IPv4, dataplane.IPv6} }

func (s *synced) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		s.duration, s.fullDuration, s.partialDuration, s.programming, s.lastSync, s.lastQueued, s.failures,
		s.serviceChanges, s.endpointChanges, s.servicesPending, s.endpointsPending, s.noLocal,
		s.transactions, s.elements, s.staleFlows, s.driftRepairs, s.longestCommit, s.programmed,
	}
}

// Queued is part of control.SyncObserver.
func (s *synced) Queued(f control.QueueFacts) {
	s.changes(f)
	for _, family := range families() {
		s.lastQueued.WithLabelValues(family.String()).Set(seconds(f.At))
	}
}

// Settled is part of control.SyncObserver.
func (s *synced) Settled(f control.QueueFacts) {
	s.changes(f)
	if !f.At.IsZero() {
		s.upToDate(f.At)
	}
}

func (s *synced) changes(f control.QueueFacts) {
	s.serviceChanges.Add(float64(f.New.Services))
	s.endpointChanges.Add(float64(f.New.EndpointSlices))
	s.pending(f.Pending)
}

func (s *synced) pending(c control.ChangeCounts) {
	s.servicesPending.Set(float64(c.Services))
	s.endpointsPending.Set(float64(c.EndpointSlices))
}

// upToDate notes when the dataplane was as it should be. Where nothing had to be
// done for a family, that counts, too: otherwise it would seem to wait for what was
// queued for the other.
func (s *synced) upToDate(at time.Time) {
	for _, family := range families() {
		s.lastSync.WithLabelValues(family.String()).Set(seconds(at))
	}
}

// Synced is part of control.SyncObserver.
func (s *synced) Synced(f control.SyncFacts) {
	s.pending(f.Pending)
	s.transactions.Add(float64(f.Report.Transactions))
	s.elements.Add(float64(f.Report.ElementsSent))
	s.staleFlows.Add(float64(f.Report.StaleFlows))
	if f.Report.Transactions > 0 {
		s.longestCommit.Observe(f.Report.LongestCommit.Seconds())
	}
	if f.Err != nil {
		s.failed(&f)
		return
	}
	if f.Drift {
		s.driftRepairs.Inc()
	}
	s.programmed.facts.Store(&programmedFacts{f.Report.Programmed, f.Problems})
	s.succeeded(&f)
}

func (s *synced) failed(f *control.SyncFacts) {
	concerned := f.Families
	if len(concerned) == 0 {
		// What follows is a sync of everything.
		concerned = families()
	}
	for _, family := range concerned {
		s.failures.WithLabelValues(family.String()).Inc()
	}
}

func (s *synced) succeeded(f *control.SyncFacts) {
	end := f.Start.Add(f.Took)
	s.upToDate(end)
	for _, family := range f.Families {
		s.observe(family, f)
	}
	for _, trigger := range f.Triggers {
		s.programming.WithLabelValues(trigger.Family.String()).Observe(end.Sub(trigger.At).Seconds())
	}
}

func (s *synced) observe(family dataplane.Family, f *control.SyncFacts) {
	label, kind := family.String(), s.partialDuration
	if f.Full {
		kind = s.fullDuration
	}
	s.duration.WithLabelValues(label).Observe(f.Took.Seconds())
	kind.WithLabelValues(label).Observe(f.Took.Seconds())
	s.noLocal.WithLabelValues("internal", label).Set(float64(f.NoLocal.Internal[family]))
	s.noLocal.WithLabelValues("external", label).Set(float64(f.NoLocal.External[family]))
}

// programmed shows what the dataplane holds, all of one moment.
type programmed struct {
	facts atomic.Pointer[programmedFacts]

	servicePorts, endpoints, elements, chains, maps, problems *prometheus.Desc
}

type programmedFacts struct {
	counts   dataplane.Counts
	problems control.ProblemCounts
}

func newProgrammed() *programmed {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("veridict_"+name, help, labels, nil)
	}
	return &programmed{
		servicePorts: desc("programmed_service_ports", "ServicePorts that are programmed: one for each port and IP family of a Service."),
		endpoints:    desc("programmed_endpoints", "Endpoints that are programmed, each once for every ServicePort that has it."),
		elements:     desc("programmed_elements", "Elements of sets and maps."),
		chains:       desc("programmed_chains", "Chains."),
		maps:         desc("programmed_maps", "Sets and maps."),
		problems: desc("problems", "What is not served as written: mistakes in objects, and ServicePorts that the kernel rejected.",
			"reason"),
	}
}

// Describe is part of prometheus.Collector.
func (p *programmed) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{p.servicePorts, p.endpoints, p.elements, p.chains, p.maps, p.problems} {
		ch <- desc
	}
}

// Collect is part of prometheus.Collector.
func (p *programmed) Collect(metrics chan<- prometheus.Metric) {
	facts := p.facts.Load()
	if facts == nil {
		return
	}
	ch := sink(metrics)
	ch.gauge(p.servicePorts, float64(facts.counts.ServicePorts))
	ch.gauge(p.endpoints, float64(facts.counts.Endpoints))
	ch.gauge(p.elements, float64(facts.counts.Elements))
	ch.gauge(p.chains, float64(facts.counts.Chains))
	ch.gauge(p.maps, float64(facts.counts.Maps))
	ch.gauge(p.problems, float64(facts.problems.Objects), "object")
	ch.gauge(p.problems, float64(facts.problems.Rejected), "rejected")
}

// What names begin with.
const (
	kubeProxy = "kubeproxy"
	own       = "veridict"
)

func histogramOpts(namespace, name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeMaxBuckets,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

func kubeHistogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(histogramOpts(kubeProxy, name, help, buckets), []string{labelFamily})
}

func kubeGauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: kubeProxy, Name: name, Help: help}, labels)
}

func kubeCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: kubeProxy, Name: name, Help: help})
}

func ownCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: own, Name: name, Help: help})
}

// syncBuckets are kube-proxy's: 1 ms to 16 s.
func syncBuckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

// programmingBuckets are kube-proxy's: finest below a minute, up to 5 minutes.
func programmingBuckets() []float64 {
	buckets := []float64{0.25, 0.5}
	buckets = append(buckets, prometheus.LinearBuckets(1, 1, 59)...)
	buckets = append(buckets, prometheus.LinearBuckets(60, 5, 12)...)
	return append(buckets, prometheus.LinearBuckets(120, 30, 7)...)
}

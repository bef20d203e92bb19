// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/veridict/veridict/control"
	"github.com/veridict/veridict/dataplane"
)

// synced holds what is counted from the facts of syncs.
type synced struct {
	// kube-proxy's metrics.
	duration, fullDuration, partialDuration, programming *prometheus.HistogramVec
	lastSync, lastQueued                                 *prometheus.GaugeVec
	failures, cleanupFailures                            *prometheus.CounterVec
	serviceChanges, endpointChanges                      prometheus.Counter
	servicesPending, endpointsPending                    prometheus.Gauge
	noLocal                                              *prometheus.GaugeVec
	healthz, livez                                       *prometheus.CounterVec

	// Our own.
	transactions, elements, staleFlows, driftRepairs prometheus.Counter
	longestCommit                                    prometheus.Histogram
	problems                                         *prometheus.GaugeVec
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
		failures:   kubeCounters("sync_proxy_rules_nftables_sync_failures_total", "Syncs that failed."),
		cleanupFailures: kubeCounters("sync_proxy_rules_nftables_cleanup_failures_total",
			"Failures to remove what is no longer used. Everything is programmed again then."),
		serviceChanges:   kubeCounter("sync_proxy_rules_service_changes_total", "Changes of Services that came."),
		endpointChanges:  kubeCounter("sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices that came."),
		servicesPending:  kubeGauge("sync_proxy_rules_service_changes_pending", "Changes of Services that wait for a sync.").WithLabelValues(),
		endpointsPending: kubeGauge("sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that wait for a sync.").WithLabelValues(),
		noLocal: kubeGauge("sync_proxy_rules_no_local_endpoints_total",
			"ServicePorts with a Local traffic policy and no endpoint on this node, though there are others.", "traffic_policy", labelFamily),

		healthz: codeCounters("proxy_healthz_total", "Answers of /healthz."),
		livez:   codeCounters("proxy_livez_total", "Answers of /livez."),

		transactions: ownCounter("transactions_total", "Transactions that were sent to the kernel."),
		elements:     ownCounter("elements_sent_total", "Elements of sets and maps that were added and deleted."),
		staleFlows:   ownCounter("stale_flows_removed_total", "Connections that were removed from connection tracking since their endpoint does not serve any more."),
		driftRepairs: ownCounter("drift_repairs_total", "Times that everything was programmed again since another process had changed the tables."),
		longestCommit: prometheus.NewHistogram(histogramOpts(own, "sync_longest_commit_duration_seconds",
			"The longest transaction of each sync: so long may others have waited for nftables.", syncBuckets())),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: own, Name: "problems", Help: "What is not served as written: mistakes in objects, and ServicePorts that the kernel rejected.",
		}, []string{"reason"}),
		programmed: newProgrammed(),
	}
	for _, vec := range []*prometheus.CounterVec{s.healthz, s.livez} {
		vec.WithLabelValues("200")
		vec.WithLabelValues("503")
	}
	for _, family := range families() {
		for _, vec := range []*prometheus.HistogramVec{s.duration, s.fullDuration, s.partialDuration, s.programming} {
			vec.WithLabelValues(family.String())
		}
		s.failures.WithLabelValues(family.String())
		s.cleanupFailures.WithLabelValues(family.String())
	}
	return s
}

// Answered counts an answer of one of the pages of control/health.
func (s *synced) Answered(page string, status int) {
	switch code := strconv.Itoa(status); page {
	case "healthz":
		s.healthz.WithLabelValues(code).Inc()
	case "livez":
		s.livez.WithLabelValues(code).Inc()
	}
}

func families() []dataplane.Family { return []dataplane.Family{dataplane.IPv4, dataplane.IPv6} }

func (s *synced) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		s.healthz, s.livez, s.duration, s.fullDuration, s.partialDuration, s.programming, s.lastSync, s.lastQueued, s.failures, s.cleanupFailures,
		s.serviceChanges, s.endpointChanges, s.servicesPending, s.endpointsPending, s.noLocal,
		s.transactions, s.elements, s.staleFlows, s.driftRepairs, s.longestCommit, s.problems, s.programmed,
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
	s.waiting(f.Pending, f.Problems)
}

// waiting shows what is not programmed, or not as it was written.
func (s *synced) waiting(pending control.ChangeCounts, problems control.ProblemCounts) {
	s.servicesPending.Set(float64(pending.Services))
	s.endpointsPending.Set(float64(pending.EndpointSlices))
	s.problems.WithLabelValues("object").Set(float64(problems.Objects))
	s.problems.WithLabelValues("rejected").Set(float64(problems.Rejected))
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
	s.waiting(f.Pending, f.Problems)
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
	counts := f.Report.Programmed
	s.programmed.counts.Store(&counts)
	s.succeeded(&f)
}

func (s *synced) failed(f *control.SyncFacts) {
	for _, family := range f.Families {
		s.failures.WithLabelValues(family.String()).Inc()
	}
	if len(f.Families) > 0 {
		return
	}
	for _, family := range families() {
		s.cleanupFailures.WithLabelValues(family.String()).Inc()
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

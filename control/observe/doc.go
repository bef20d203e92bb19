// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package observe compares what the kernel did with what it was told to do: an
// [Observer] reads the counters of the BPF probes at intervals, joins them with the
// ServicePorts that are programmed, and publishes a [Snapshot]: who was selected how
// often, whether that is as even as it should be, what is wrong, and how long it all
// took.
//
// The Observer stands as a [dataplane.Syncer] before another and learns from it what
// is programmed; it changes nothing in it and delays nothing. Without probes it
// publishes snapshots that say why there is nothing to see. It is safe for concurrent
// use; a Snapshot is never changed after it was published.
//
// It knows neither BPF nor Prometheus: the probes come in as [Probes], and
// control/metrics and control/api read snapshots.
package observe

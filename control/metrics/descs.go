// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// Labels that several metrics have.
const (
	labelFamily = "ip_family"
	labelKind   = "kind"
)

func serviceLabels(more ...string) []string {
	return append([]string{"namespace", "service", "port", "protocol", labelFamily}, more...)
}

// serviceValues are the values of serviceLabels.
func serviceValues(key dataplane.ServicePortKey, more ...string) []string {
	return append([]string{key.Namespace, key.Name, key.Port, key.Protocol.String(), key.Family.String()}, more...)
}

// otherValues are the values of serviceLabels for all that have no series of their
// own.
func otherValues(more ...string) []string {
	return append([]string{"", other, "", "", ""}, more...)
}

// observedDescs describe what is made of snapshots.
type observedDescs struct {
	probes, readAt, readFailing, capacity, losses *prometheus.Desc

	firstPacket, firstSelection *prometheus.Desc

	selections, foreign, missed, alarms *prometheus.Desc

	serviceSelections, endpointSelections *prometheus.Desc
	evidence, detectable, uneven          *prometheus.Desc
}

func newObservedDescs() observedDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(own, "", name), help, labels, nil)
	}
	return observedDescs{
		probes:      desc("probes_info", "How the probes in the kernel are attached, and why not better. Always 1.", "mode", "reason"),
		readAt:      desc("probes_last_read_timestamp_seconds", "When the counters of the probes were last read."),
		readFailing: desc("probes_read_failing", "1 if the last attempt to read the counters of the probes failed."),
		capacity:    desc("probes_selection_counters_capacity", "How many pairs of frontend and endpoint the probes can count."),
		losses:      desc("probes_losses_total", "First packets of connections that the probes did not count (full, retransmitted), did not time (unmatched), or counted though connection tracking let go of them (clashed).", labelKind),

		firstPacket:    desc("first_packet_duration_seconds", "How long the NAT hook of the kernel took for the first packet of a connection.", labelFamily, "hook", "outcome"),
		firstSelection: desc("endpoint_first_selection_duration_seconds", "From the moment a change was seen to the first connection to a new endpoint, of Services with traffic."),

		selections: desc("selections_total", "Connections to Services that came to an endpoint."),
		foreign:    desc("foreign_connections_total", "Connections that something else in the kernel translated."),
		missed:     desc("missed_connections_total", "Connections to frontends of Services that were not translated."),
		alarms:     desc("alarms", "What is wrong now, by kind.", labelKind),

		serviceSelections:  desc("service_selections_total", "Connections by Service. Those of Services without a series of their own are in the one of service _other.", serviceLabels()...),
		endpointSelections: desc("endpoint_selections_total", "Connections by endpoint. Those of endpoints without a series of their own are in the one of service _other.", serviceLabels("endpoint")...),
		evidence:           desc("service_evenness_evidence", "Natural logarithm of the evidence that connections are spread unevenly over the endpoints that they may go to. It may be looked at at any time: by chance it exceeds 9.2 for at most one Service in 10000.", serviceLabels("pool")...),
		detectable:         desc("service_evenness_detectable_ratio", "Smallest relative deviation of one endpoint from its share that so many connections would have shown with a chance of 80 %.", serviceLabels("pool")...),
		uneven:             desc("service_uneven", "1 if connections are spread unevenly, with the rate of false findings bounded over all Services.", serviceLabels("pool")...),
	}
}

func (d *observedDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.probes, d.readAt, d.readFailing, d.capacity, d.losses, d.firstPacket, d.firstSelection,
		d.selections, d.foreign, d.missed, d.alarms, d.serviceSelections, d.endpointSelections,
		d.evidence, d.detectable, d.uneven,
	}
}

// alarmKinds are those that always have a series, so that alerts see them come.
func alarmKinds() []observe.AlarmKind {
	return []observe.AlarmKind{
		observe.UnknownEndpoint, observe.MissedService, observe.NeverSelected, observe.Uneven, observe.ProbesFull,
	}
}

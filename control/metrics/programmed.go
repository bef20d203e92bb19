// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/veridict/veridict/dataplane"
)

// programmed shows what the dataplane holds, all of one moment.
type programmed struct {
	counts atomic.Pointer[dataplane.Counts]

	servicePorts, endpoints, elements, chains, maps *prometheus.Desc
}

func newProgrammed() *programmed {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(own, "programmed", name), help, nil, nil)
	}
	return &programmed{
		servicePorts: desc("service_ports", "ServicePorts that are programmed: one for each port and IP family of a Service."),
		endpoints:    desc("endpoints", "Endpoints that are programmed, each once for every ServicePort that has it."),
		elements:     desc("elements", "Elements of sets and maps."),
		chains:       desc("chains", "Chains."),
		maps:         desc("maps", "Sets and maps."),
	}
}

// Describe is part of prometheus.Collector.
func (p *programmed) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{p.servicePorts, p.endpoints, p.elements, p.chains, p.maps} {
		ch <- desc
	}
}

// Collect is part of prometheus.Collector.
func (p *programmed) Collect(metrics chan<- prometheus.Metric) {
	counts := p.counts.Load()
	if counts == nil {
		return
	}
	ch := sink(metrics)
	ch.gauge(p.servicePorts, float64(counts.ServicePorts))
	ch.gauge(p.endpoints, float64(counts.Endpoints))
	ch.gauge(p.elements, float64(counts.Elements))
	ch.gauge(p.chains, float64(counts.Chains))
	ch.gauge(p.maps, float64(counts.Maps))
}

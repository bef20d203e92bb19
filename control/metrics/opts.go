// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What names begin with.
const (
	kubeProxy = "kubeproxy"
	own       = "veridict"
)

// Native buckets as kube-proxy has them.
const (
	nativeFactor     = 1.1
	nativeMaxBuckets = 160
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

func kubeCounters(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: kubeProxy, Name: name, Help: help}, []string{labelFamily})
}

func codeCounters(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: kubeProxy, Name: name, Help: help}, []string{"code"})
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

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/veridict/veridict/control/observe"
)

// histogram is a histogram of the probes as a metric, with classic and native
// buckets.
//
// Its bounds are powers of two of nanoseconds, those of native buckets powers of two
// of seconds. Each bucket becomes the native one that it has most in common with,
// whose bounds are 7 % lower: little beside the factor of two that a bucket spans.
type histogram struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	counts *observe.Histogram
}

const (
	// firstBound is the upper bound of the first bucket.
	firstBound = 64 * time.Nanosecond
	// nativeSchema is that of bounds at powers of two of seconds.
	nativeSchema = 0
	// firstNative is the number of the native bucket for the first one. Its upper
	// bound is 2^-24 s, 59.6 ns.
	firstNative = -24
)

// newHistogram returns a metric for counts that do not change any more.
func newHistogram(desc *prometheus.Desc, counts *observe.Histogram, labels ...string) *histogram {
	return &histogram{desc: desc, labels: prometheus.MakeLabelPairs(desc, labels), counts: counts}
}

// Desc is part of prometheus.Metric.
func (h *histogram) Desc() *prometheus.Desc { return h.desc }

// Write is part of prometheus.Metric.
func (h *histogram) Write(out *dto.Metric) error {
	var total, last uint64
	buckets := make([]*dto.Bucket, 0, observe.HistogramBuckets-1)
	deltas := make([]int64, 0, observe.HistogramBuckets)
	for i, count := range h.counts.Counts {
		total += count
		deltas = append(deltas, int64(count-last))
		last = count
		// The last bucket has no bound; le="+Inf" is implied.
		if i < observe.HistogramBuckets-1 {
			buckets = append(buckets, &dto.Bucket{
				UpperBound: new((firstBound << i).Seconds()), CumulativeCount: new(total),
			})
		}
	}
	out.Label = h.labels
	out.Histogram = &dto.Histogram{
		SampleCount: new(total), SampleSum: new(h.counts.Sum.Seconds()), Bucket: buckets,
		Schema: new(int32(nativeSchema)), ZeroThreshold: new(prometheus.DefNativeHistogramZeroThreshold), ZeroCount: new(uint64(0)),
		PositiveSpan:  []*dto.BucketSpan{{Offset: new(int32(firstNative)), Length: new(uint32(observe.HistogramBuckets))}},
		PositiveDelta: deltas,
	}
	return nil
}

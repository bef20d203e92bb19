// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/bpf/uniformity"
	"github.com/veridict/veridict/dataplane"
)

// pool is a set of endpoints that is drawn from, and an epoch of draws: it is
// replaced when the set, the weights or the algorithm change.
type pool struct {
	local     bool
	algorithm dataplane.Algorithm
	endpoints []dataplane.Endpoint
	shares    []float64
	// drawn counts the draws of each endpoint since the epoch began, n all of them.
	drawn []uint64
	n     uint64
	// since is when the epoch began: at the first reading after the change. Draws
	// of before may be those of the old set. Zero until then.
	since    time.Time
	evenness Evenness
	// judged is the n that the evenness is of.
	judged uint64
}

func newPool(local bool, algorithm dataplane.Algorithm, endpoints []dataplane.Endpoint) *pool {
	p := &pool{
		local: local, algorithm: algorithm, endpoints: endpoints,
		drawn: make([]uint64, len(endpoints)), shares: make([]float64, len(endpoints)),
	}
	sum := 0
	for i := range endpoints {
		sum += endpoints[i].Buckets()
	}
	for i := range endpoints {
		p.shares[i] = float64(endpoints[i].Buckets()) / float64(sum)
	}
	switch {
	case len(endpoints) == 0:
		p.evenness.Untested = "no endpoints"
	case len(endpoints) == 1:
		p.evenness.Untested = "one endpoint"
	case algorithm == dataplane.SourceHash:
		p.evenness.Untested = "source-hash: each client has its endpoint"
	}
	p.evenness.PValue = 1
	return p
}

// continues says whether draws from o are as those from p.
func (p *pool) continues(o *pool) bool {
	return p.algorithm == o.algorithm && slices.EqualFunc(p.endpoints, o.endpoints, sameDraw)
}

// sameDraw says whether two endpoints are drawn alike, wherever they are.
func sameDraw(a, b dataplane.Endpoint) bool { return a.Addr == b.Addr && a.Buckets() == b.Buckets() }

// find returns the place of an endpoint, or -1. They are sorted.
func (p *pool) find(addr netip.AddrPort) int {
	i, found := slices.BinarySearchFunc(p.endpoints, addr, func(ep dataplane.Endpoint, addr netip.AddrPort) int {
		return ep.Addr.Compare(addr)
	})
	if !found {
		return -1
	}
	return i
}

// tested says whether there is a verdict.
func (p *pool) tested() bool { return p.evenness.Untested == "" }

// judge brings the evenness up to date.
func (p *pool) judge(effects effects) error {
	if !p.tested() || p.judged == p.n {
		return nil
	}
	e := &p.evenness
	e.N = p.n
	var err error
	if e.LogE, err = uniformity.LogE(p.drawn, p.shares); err != nil {
		return err
	}
	counts := make([]int, len(p.drawn))
	for i, n := range p.drawn {
		counts[i] = int(n)
	}
	result, err := uniformity.ChiSquare(counts, p.shares)
	if err != nil {
		return err
	}
	e.PValue = result.PValue
	w, err := effects.detectable(p.n, len(p.endpoints)-1)
	if err != nil {
		return err
	}
	e.Detectable = uniformity.ShareDeviation(w, slices.Min(p.shares))
	p.judged = p.n
	return nil
}

// Of the fixed test that Detectable is about.
const (
	detectableAlpha = 0.01
	detectablePower = 0.8
)

// effects remembers what is detectable, which takes a fraction of a millisecond to
// compute and falls with the root of the draws: steps of 5 % are fine enough.
type effects map[effectKey]float64

type effectKey struct {
	// step is the logarithm of the draws to the base 1.05, rounded down.
	step, dof int
}

const effectStep = 1.05

// detectable returns the smallest effect that n draws show.
func (e effects) detectable(n uint64, dof int) (float64, error) {
	key := effectKey{step: int(math.Log(float64(n)) / math.Log(effectStep)), dof: dof}
	if w, known := e[key]; known {
		return w, nil
	}
	rounded := max(int(math.Pow(effectStep, float64(key.step))), 1)
	w, err := uniformity.DetectableEffect(rounded, dof, detectableAlpha, detectablePower)
	if err != nil {
		return 0, err
	}
	e[key] = w
	return w, nil
}

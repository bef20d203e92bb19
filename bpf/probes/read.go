// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// batchSize is how many entries are read or written by one system call.
const batchSize = 4096

// Selections returns all counters, in no order.
func (p *Probes) Selections() ([]Selection, error) {
	clock, err := newBootClock()
	if err != nil {
		return nil, err
	}
	var all []Selection
	err = eachEntry(p.maps.Selections4, func(k *probesSelection4Key, v *probesSelection) {
		all = append(all, clock.selection(Key{
			VIP: netip.AddrPortFrom(netip.AddrFrom4(k.Vip), k.Port), Protocol: uint8(k.Protocol),
			Endpoint: netip.AddrPortFrom(netip.AddrFrom4(k.Endpoint), k.EndpointPort),
		}, v))
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", probesMapSelections4, err)
	}
	err = eachEntry(p.maps.Selections6, func(k *probesSelection6Key, v *probesSelection) {
		all = append(all, clock.selection(Key{
			VIP: netip.AddrPortFrom(netip.AddrFrom16(k.Vip), k.Port), Protocol: uint8(k.Protocol),
			Endpoint: netip.AddrPortFrom(netip.AddrFrom16(k.Endpoint), k.EndpointPort),
		}, v))
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", probesMapSelections6, err)
	}
	return all, nil
}

// bootClock turns the kernel's times into those of the wall.
type bootClock struct {
	boot time.Time
}

func newBootClock() (bootClock, error) {
	var since unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &since); err != nil {
		return bootClock{}, fmt.Errorf("read the time since boot: %w", err)
	}
	return bootClock{boot: time.Now().Add(-time.Duration(since.Nano()))}, nil
}

func (c bootClock) selection(key Key, v *probesSelection) Selection {
	return Selection{
		Key: key, Drawn: v.Drawn, Pinned: v.Pinned,
		First: c.boot.Add(time.Duration(v.FirstNs)), Last: c.boot.Add(time.Duration(v.LastNs)),
	}
}

// eachEntry calls visit for every entry of a hash. One that is added or removed
// meanwhile may be missing, none comes twice.
func eachEntry[K comparable, V any](m *ebpf.Map, visit func(*K, *V)) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batchSize), make([]V, batchSize)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			visit(&keys[i], &values[i])
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case errors.Is(err, unix.ENOSPC):
			// One bucket of the hash has more entries than fit.
			keys, values = make([]K, 2*len(keys)), make([]V, 2*len(values))
		case err != nil:
			return err
		}
	}
}

// Latencies returns the histograms of all families, hooks and outcomes, in no order.
func (p *Probes) Latencies() ([]Latency, error) {
	var all []Latency
	var key probesLatencyKey
	var perCPU []probesHistogram
	entries := p.maps.Latency.Iterate()
	for entries.Next(&key, &perCPU) {
		l := Latency{Family: key.Family, Hook: Hook(key.Hook), Outcome: Outcome(key.Outcome)}
		for _, h := range perCPU {
			l.Sum += time.Duration(h.SumNs)
			for i, n := range h.Counts {
				l.Counts[i] += n
			}
		}
		all = append(all, l)
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", probesMapLatency, err)
	}
	return all, nil
}

// Losses returns what was not counted.
func (p *Probes) Losses() (Losses, error) {
	var l probesLossCounts
	if err := p.maps.Losses.Lookup(uint32(0), &l); err != nil {
		return Losses{}, fmt.Errorf("read map %s: %w", probesMapLosses, err)
	}
	return Losses{Full: l.Full, Unmatched: l.Unmatched, Retransmitted: l.Retransmitted}, nil
}

// Forget removes counters. Unknown ones are no error. What is counted between the
// last reading and this call is lost.
func (p *Probes) Forget(keys []Key) error {
	for _, key := range keys {
		var err error
		if key.VIP.Addr().Is4() {
			err = p.maps.Selections4.Delete(&probesSelection4Key{
				Vip: key.VIP.Addr().As4(), Port: key.VIP.Port(), Protocol: uint16(key.Protocol),
				Endpoint: key.Endpoint.Addr().As4(), EndpointPort: key.Endpoint.Port(),
			})
		} else {
			err = p.maps.Selections6.Delete(&probesSelection6Key{
				Vip: key.VIP.Addr().As16(), Port: key.VIP.Port(), Protocol: uint16(key.Protocol),
				Endpoint: key.Endpoint.Addr().As16(), EndpointPort: key.Endpoint.Port(),
			})
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove the counter of %s at %s: %w", key.VIP, key.Endpoint, err)
		}
	}
	return nil
}

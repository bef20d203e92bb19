// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/bpf/uniformity"
	"github.com/veridict/veridict/dataplane"
)

// alarmHold is how long an alarm about connections stays after the last of them.
const alarmHold = time.Minute

// alarmID tells alarms apart.
type alarmID struct {
	kind     AlarmKind
	key      dataplane.ServicePortKey
	vip      dataplane.VIP
	endpoint netip.AddrPort
}

// alarmBook holds what is wrong.
type alarmBook struct {
	log   *slog.Logger
	open  map[alarmID]*openAlarm
	order []Alarm
}

// openAlarm is an alarm and when it was raised for the last time.
type openAlarm struct {
	Alarm
	last time.Time
	// held alarms stay for a while without being raised again.
	held bool
}

func newAlarmBook(log *slog.Logger) alarmBook {
	return alarmBook{log: log, open: make(map[alarmID]*openAlarm)}
}

// raise opens an alarm or keeps it open.
func (b *alarmBook) raise(id alarmID, n uint64, now time.Time, held bool, text func(n uint64) string) {
	a := b.open[id]
	if a == nil {
		a = &openAlarm{held: held, Alarm: Alarm{
			Kind: id.kind, Key: id.key, VIP: id.vip, Endpoint: id.endpoint, Since: now,
		}}
		b.open[id] = a
		b.log.Warn("alarm raised", "alarm", string(id.kind), "text", text(n))
	}
	a.last = now
	a.Count += n
	a.Text = text(a.Count)
}

// settle closes what was not raised any more.
func (b *alarmBook) settle(now time.Time) {
	for id, a := range b.open {
		hold := time.Duration(0)
		if a.held {
			hold = alarmHold
		}
		if now.Sub(a.last) > hold {
			b.log.Info("alarm is over", "alarm", string(id.kind), "text", a.Text)
			delete(b.open, id)
		}
	}
	b.order = make([]Alarm, 0, len(b.open))
	for _, a := range slices.SortedFunc(maps.Values(b.open), compareAlarms) {
		b.order = append(b.order, a.Alarm)
	}
}

func compareAlarms(a, b *openAlarm) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), a.Key.Compare(b.Key), cmp.Compare(a.VIP.String(), b.VIP.String()),
		a.Endpoint.Compare(b.Endpoint),
	)
}

func (b *alarmBook) list() []Alarm { return b.order }

func (b *alarmBook) unknown(r *record, s *Selection, n uint64, now time.Time) {
	id := alarmID{kind: UnknownEndpoint, key: r.port.Key, vip: s.VIP, endpoint: s.Endpoint}
	b.raise(id, n, now, true, func(n uint64) string {
		return fmt.Sprintf("%d connections to %s (%s) came to %s, which is no endpoint of it: "+
			"see veridict verify, and whether another proxy runs on this node", n, r.port.Key, s.VIP, s.Endpoint)
	})
}

func (b *alarmBook) missed(r *record, s *Selection, n uint64, now time.Time) {
	id := alarmID{kind: MissedService, key: r.port.Key, vip: s.VIP}
	b.raise(id, n, now, true, func(n uint64) string {
		return fmt.Sprintf("%d connections to %s (%s) were not translated though it has endpoints: "+
			"see veridict explain and veridict verify", n, r.port.Key, s.VIP)
	})
}

func (b *alarmBook) full(n uint64, now time.Time) {
	b.raise(alarmID{kind: ProbesFull}, n, now, true, func(n uint64) string {
		return fmt.Sprintf("%d connections were not counted, as there is no room for more counters", n)
	})
}

func (b *alarmBook) never(r *record, p *pool, i int, now time.Time) {
	id := alarmID{kind: NeverSelected, key: r.port.Key, endpoint: p.endpoints[i].Addr}
	b.raise(id, 0, now, false, func(uint64) string {
		return fmt.Sprintf("%s of %s was not selected once in %d draws: see veridict verify",
			p.endpoints[i].Addr, r.port.Key, p.n)
	})
}

func (b *alarmBook) uneven(r *record, p *pool, now time.Time) {
	worst := 0
	for i := range p.drawn {
		if math.Abs(p.deviation(i)) > math.Abs(p.deviation(worst)) {
			worst = i
		}
	}
	id := alarmID{kind: Uneven, key: r.port.Key}
	b.raise(id, 0, now, false, func(uint64) string {
		return fmt.Sprintf("%s is uneven: of %d draws %d came to %s, %.0f were to be expected: see veridict buckets and veridict verify",
			r.port.Key, p.n, p.drawn[worst], p.endpoints[worst].Addr, p.shares[worst]*float64(p.n))
	})
}

// deviation is that of an endpoint's draws, in standard deviations.
func (p *pool) deviation(i int) float64 {
	expected := p.shares[i] * float64(p.n)
	return (float64(p.drawn[i]) - expected) / math.Sqrt(expected)
}

// judgePools looks at all pools together.
func (l *ledger) judgePools(now time.Time) {
	type place struct {
		r *record
		p *pool
	}
	var places []place
	var logs []float64
	endpoints := 0
	for _, r := range l.sorted() {
		for _, p := range r.pools {
			if p.judged != p.n {
				r.service = nil
			}
			if err := p.judge(l.effects); err != nil {
				l.warnOnce("cannot judge "+r.port.Key.String(), err)
				continue
			}
			if p.tested() {
				places = append(places, place{r, p})
				logs = append(logs, p.evenness.LogE)
				endpoints += len(p.endpoints)
			}
		}
	}
	for i, rejected := range uniformity.EBH(logs, l.alpha) {
		r, p := places[i].r, places[i].p
		if p.evenness.Rejected != rejected {
			p.evenness.Rejected = rejected
			r.service = nil
		}
		if rejected {
			l.alarms.uneven(r, p, now)
		}
		for j, n := range p.drawn {
			// The chance that this endpoint or any other that is looked at is left out.
			if n == 0 && float64(p.n)*math.Log1p(-p.shares[j]) < math.Log(l.alpha/float64(endpoints)) {
				l.alarms.never(r, p, j, now)
			}
		}
	}
}

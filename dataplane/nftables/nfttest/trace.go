// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nfttest

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

// Packet is the first packet of a connection.
type Packet struct {
	Source netip.Addr
	// In is the interface that the packet comes in by. A packet without one
	// is sent by the node itself.
	In       string
	Protocol dataplane.Protocol
	Dest     netip.AddrPort
	// ToNode says that the packet is for the node itself if no rule
	// translates it.
	ToNode bool
}

// Outcome is what can become of a packet.
type Outcome struct {
	// Verdict is "none", "dnat", "reject" or "drop".
	Verdict string
	// Endpoint is where a packet with the verdict "dnat" is sent to.
	Endpoint netip.AddrPort
	// Masquerade says that the node's address takes the place of the source.
	Masquerade bool
	// Counted says that the packet passed a counter. Those of veridict count what
	// should not happen, and rejected NodePorts on loopback addresses.
	Counted bool
}

// String returns "none", "reject", "drop" or the endpoint, followed by
// "masquerade" and "counted" where they apply.
func (o Outcome) String() string {
	text := o.Verdict
	if o.Endpoint.IsValid() {
		text = o.Endpoint.String()
	}
	if o.Masquerade {
		text += " masquerade"
	}
	if o.Counted {
		text += " counted"
	}
	return text
}

// Tracer knows the rules of one table.
type Tracer struct{ index *index }

// NewTracer reads the rules of the table. Any word it does not know is an error.
// Later changes of the table are not seen. local are the addresses of the node;
// loopback addresses always are.
func NewTracer(table *knftables.FakeTable, local ...netip.Addr) (*Tracer, error) {
	index, err := newIndex(table, local)
	if err != nil {
		return nil, fmt.Errorf("read table: %w", err)
	}
	return &Tracer{index: index}, nil
}

// Trace returns all that can become of the packet, sorted, each once. What it would
// write is forgotten.
func (t *Tracer) Trace(p Packet) ([]Outcome, error) {
	var outcomes []Outcome
	for draws := new(draws); ; {
		outcome, _, err := t.connect(p, draws.draw, draws.draw)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(outcomes, outcome) {
			outcomes = append(outcomes, outcome)
		}
		if !draws.advance() {
			break
		}
	}
	slices.SortFunc(outcomes, func(a, b Outcome) int {
		return cmp.Or(a.Endpoint.Compare(b.Endpoint), strings.Compare(a.String(), b.String()))
	})
	return outcomes, nil
}

// Connect returns what becomes of the packet if draw is asked for numbers below n,
// and what it writes. The tracer does not keep that: put it into the table, and make
// another tracer. Hashes are not asked for, they depend on the source only.
func (t *Tracer) Connect(p Packet, draw func(n int) int) (Outcome, []Learned, error) {
	return t.connect(p, draw, func(n int) int { return hashOf(p.Source, n) })
}

// hashOf is a number below n that depends on the source. The kernel's is another.
func hashOf(source netip.Addr, n int) int {
	h := fnv.New32a()
	_, _ = h.Write(source.AsSlice()) // never fails
	return int(h.Sum32() % uint32(n))
}

func (t *Tracer) connect(p Packet, draw, hash func(n int) int) (Outcome, []Learned, error) {
	if p.Source.Is4() != (t.index.ip == "ip") || p.Dest.Addr().Is4() != (t.index.ip == "ip") {
		return Outcome{}, nil, fmt.Errorf("trace %s to %s: the table is of another family", p.Source, p.Dest)
	}
	pkt := &packet{
		source: p.Source, in: p.In, protocol: p.Protocol.String(), mark: "0", toNode: p.ToNode,
		dest: p.Dest.Addr(), port: p.Dest.Port(), original: p.Dest,
		draw: draw, hash: hash,
	}
	outcome, err := t.index.pass(pkt)
	if err != nil {
		return Outcome{}, nil, fmt.Errorf("trace %s to %s: %w", p.Source, p.Dest, err)
	}
	return outcome, pkt.learned, nil
}

// draws enumerates the sequences of random numbers that rules can draw.
type draws struct {
	values, limits []int
	next           int
}

func (d *draws) draw(n int) int {
	if d.next == len(d.values) {
		d.values, d.limits = append(d.values, 0), append(d.limits, n)
	}
	d.next++
	return d.values[d.next-1]
}

// advance goes on to the next sequence, if there is one.
func (d *draws) advance() bool {
	d.next = 0
	for i := len(d.values) - 1; i >= 0; i-- {
		if d.values[i]+1 < d.limits[i] {
			d.values[i]++
			d.values, d.limits = d.values[:i+1], d.limits[:i+1]
			return true
		}
	}
	return false
}

// packet is a packet on its way.
type packet struct {
	source, dest netip.Addr
	original     netip.AddrPort
	toNode       bool
	// out says that the node has sent the packet out.
	out                    bool
	learned                []Learned
	port                   uint16
	protocol, in, mark     string
	translated, masquerade bool
	counted                bool
	draw, hash             func(n int) int
	depth                  int
}

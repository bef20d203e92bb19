// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"slices"

	"github.com/veridict/veridict/dataplane"
)

// Flow is one tracked UDP flow.
type Flow struct {
	// ID tells it from another flow with the same addresses.
	ID uint32
	// Source and Dest are as the client has sent the first packet.
	Source, Dest netip.AddrPort
	// Zone is that of connection tracking, 0 if there is none.
	Zone uint16
	// ReplySource is where answers come from: the endpoint, or Dest if the flow was
	// not translated.
	ReplySource netip.AddrPort
	// Translated says that the destination was.
	Translated bool
}

// Frontend is a VIP of one family. A NodePort has no address to tell it.
type Frontend struct {
	Family dataplane.Family
	VIP    dataplane.VIP
}

// frontends knows the UDP frontends and which of their endpoints serve.
type frontends struct {
	known     map[Frontend]record
	ports     map[dataplane.ServicePortKey][]Frontend
	nodePorts nodePortAddresses
	// dirty are the frontends whose flows have to be looked at. Some of them are
	// gone.
	dirty map[Frontend]struct{}
	// held are ServicePorts that the kernel may not serve as wanted yet. Their
	// frontends stay dirty until it does.
	held map[dataplane.ServicePortKey]struct{}
}

// record is what is known of a frontend.
type record struct {
	owner dataplane.ServicePortKey
	// serving is sorted.
	serving []netip.AddrPort
	// sticky says that the ServicePort has session affinity.
	sticky bool
}

func (r *record) serves(endpoint netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(r.serving, endpoint, netip.AddrPort.Compare)
	return found
}

// nodePortAddresses are the addresses that take NodePorts.
type nodePortAddresses struct {
	some []netip.Addr
	all  []dataplane.Family
}

// has says whether rules translate what is sent to a NodePort on addr. They leave
// loopback addresses alone. local says whether an address is one of the node's.
func (a *nodePortAddresses) has(addr netip.Addr, local func(netip.Addr) bool) bool {
	return slices.Contains(a.some, addr) ||
		slices.Contains(a.all, dataplane.FamilyOf(addr)) && !addr.IsLoopback() && local(addr)
}

func newFrontends() *frontends {
	return &frontends{
		known: make(map[Frontend]record), ports: make(map[dataplane.ServicePortKey][]Frontend),
		dirty: make(map[Frontend]struct{}),
	}
}

// reset takes a whole state. What differs from before is dirty; all is if all says
// so.
func (f *frontends) reset(state *dataplane.State, all bool) {
	for key := range f.ports {
		if _, ok := state.ServicePorts[key]; !ok {
			f.set(key, nil)
		}
	}
	for key, sp := range state.ServicePorts {
		f.set(key, &sp)
	}
	f.setSettings(&state.Settings)
	if all {
		for front := range f.known {
			f.dirty[front] = struct{}{}
		}
	}
}

// apply takes what has changed.
func (f *frontends) apply(update *dataplane.Update) {
	for _, key := range update.Removed {
		f.set(key, nil)
	}
	for i := range update.Changed {
		f.set(update.Changed[i].Key, &update.Changed[i])
	}
	if update.Settings != nil {
		f.setSettings(update.Settings)
	}
}

// setSettings has the flows to NodePorts looked at when other addresses take them: on
// a new one some may not have been translated.
func (f *frontends) setSettings(settings *dataplane.Settings) {
	some, all := settings.NodePortAddresses, settings.AllAddresses
	if slices.Equal(some, f.nodePorts.some) && slices.Equal(all, f.nodePorts.all) {
		return
	}
	f.nodePorts = nodePortAddresses{some, all}
	for front := range f.known {
		if front.VIP.IsNodePort() {
			f.dirty[front] = struct{}{}
		}
	}
}

// set replaces what is known of a ServicePort, nil for one that is gone.
func (f *frontends) set(key dataplane.ServicePortKey, sp *dataplane.ServicePort) {
	if key.Protocol != dataplane.UDP {
		return
	}
	var now []Frontend
	if sp != nil {
		for _, vip := range sp.VIPs() {
			now = append(now, Frontend{key.Family, vip})
		}
	}
	for _, front := range f.ports[key] {
		// Another ServicePort may have it by now.
		if !slices.Contains(now, front) && f.known[front].owner == key {
			delete(f.known, front)
			f.dirty[front] = struct{}{}
		}
	}
	for _, front := range now {
		old, known := f.known[front]
		if !known || old.owner != key || !slices.Equal(old.serving, sp.Serving) {
			f.dirty[front] = struct{}{}
		}
		f.known[front] = record{owner: key, serving: sp.Serving, sticky: sp.AffinitySeconds > 0}
	}
	if len(now) == 0 {
		delete(f.ports, key)
	} else {
		f.ports[key] = now
	}
}

// hold replaces the ServicePorts that are not served as wanted. Their old rules may
// go on making flows to endpoints that do not serve.
func (f *frontends) hold(rejected []dataplane.Rejection) {
	f.held = make(map[dataplane.ServicePortKey]struct{}, len(rejected))
	for _, r := range rejected {
		f.held[r.Key] = struct{}{}
		for _, front := range f.ports[r.Key] {
			f.dirty[front] = struct{}{}
		}
	}
}

// ready returns the dirty frontends whose rules are those of the state.
func (f *frontends) ready() map[Frontend]struct{} {
	list := make(map[Frontend]struct{}, len(f.dirty))
	for front := range f.dirty {
		if _, held := f.held[f.known[front].owner]; !held {
			list[front] = struct{}{}
		}
	}
	return list
}

// sticky returns those of the frontends whose ServicePorts have session affinity.
func (f *frontends) sticky(list map[Frontend]struct{}) map[Frontend]struct{} {
	sticky := make(map[Frontend]struct{})
	for front := range list {
		if f.known[front].sticky {
			sticky[front] = struct{}{}
		}
	}
	return sticky
}

// stale says whether a flow has to go that was sent to one of the frontends of look.
// local says whether an address is one of the node's.
//
// It belongs to the frontend that rules would take it to: a VIP comes before a
// NodePort of the same number. Flows to a NodePort stay while nothing serves, since
// the port may be that of a program of the node then.
func (f *frontends) stale(flow *Flow, look map[Frontend]struct{}, local func(netip.Addr) bool) bool {
	vip, nodePort := flow.frontends()
	_, lookVIP := look[vip]
	_, lookNodePort := look[nodePort]
	if !lookVIP && !lookNodePort {
		return false
	}
	if r, known := f.known[vip]; known {
		return lookVIP && !r.serves(flow.ReplySource)
	}
	addr := flow.Dest.Addr()
	r, known := f.known[nodePort]
	known = known && len(r.serving) > 0
	switch {
	case known && f.nodePorts.has(addr, local):
		return !r.serves(flow.ReplySource)
	case !flow.Translated:
		// Nothing translates it now either.
		return false
	case lookVIP:
		// The VIP is gone; the flow was translated by the rules that it had.
		return true
	default:
		// From when the address took NodePorts; other people's addresses never did.
		return known && local(addr) && !r.serves(flow.ReplySource)
	}
}

// frontends returns the two that a flow may have been sent to.
func (flow *Flow) frontends() (vip, nodePort Frontend) {
	family := dataplane.FamilyOf(flow.Dest.Addr())
	vip = Frontend{family, dataplane.VIP{Addr: flow.Dest.Addr(), Protocol: dataplane.UDP, Port: flow.Dest.Port()}}
	nodePort = vip
	nodePort.VIP.Addr = netip.Addr{}
	return vip, nodePort
}

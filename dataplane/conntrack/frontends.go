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
	serving map[Frontend][]netip.AddrPort
	owner   map[Frontend]dataplane.ServicePortKey
	ports   map[dataplane.ServicePortKey][]Frontend
	// dirty are the frontends whose flows have to be looked at. Some of them are
	// gone.
	dirty map[Frontend]struct{}
}

func newFrontends() *frontends {
	return &frontends{
		serving: make(map[Frontend][]netip.AddrPort), owner: make(map[Frontend]dataplane.ServicePortKey),
		ports: make(map[dataplane.ServicePortKey][]Frontend), dirty: make(map[Frontend]struct{}),
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
	if all {
		for front := range f.serving {
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
		if !slices.Contains(now, front) && f.owner[front] == key {
			delete(f.serving, front)
			delete(f.owner, front)
			f.dirty[front] = struct{}{}
		}
	}
	for _, front := range now {
		serving, known := f.serving[front]
		if !known || f.owner[front] != key || !slices.Equal(serving, sp.Serving) {
			f.dirty[front] = struct{}{}
		}
		f.serving[front], f.owner[front] = sp.Serving, key
	}
	if len(now) == 0 {
		delete(f.ports, key)
	} else {
		f.ports[key] = now
	}
}

// stale says whether a flow to a frontend has to go. local says whether an address
// is one of the node's.
//
// A flow to a frontend that no ServicePort has any more has to go if it was
// translated: only we can have done that. One to a NodePort stays while nothing
// serves, since the port may be that of a program of the node then.
func (f *frontends) stale(front Frontend, flow *Flow, local func(netip.Addr) bool) bool {
	serving, known := f.serving[front]
	nodePort := front.VIP.IsNodePort()
	switch {
	case nodePort && (len(serving) == 0 || !local(flow.Dest.Addr())):
		return false
	case !known:
		return flow.Translated
	default:
		_, serves := slices.BinarySearchFunc(serving, flow.ReplySource, netip.AddrPort.Compare)
		return !serves
	}
}

// frontendOf returns the frontend of what is dirty that a flow was sent to.
func frontendOf(flow *Flow, dirty map[Frontend]struct{}) (Frontend, bool) {
	family := dataplane.FamilyOf(flow.Dest.Addr())
	front := Frontend{family, dataplane.VIP{Addr: flow.Dest.Addr(), Protocol: dataplane.UDP, Port: flow.Dest.Port()}}
	if _, ok := dirty[front]; ok {
		return front, true
	}
	front.VIP.Addr = netip.Addr{}
	_, ok := dirty[front]
	return front, ok
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"net/netip"

	"github.com/veridict/veridict/dataplane"
)

// Redirector leads connections to a NodePort on loopback addresses to the node's own
// address, where the rules serve them, before they are made. It is called by one
// goroutine.
//
// from is the NodePort on 127.0.0.1 or ::1, which stands for all loopback addresses of
// its family, and protocol the IANA number of TCP or UDP.
type Redirector interface {
	// Redirect replaces what was said of from before. Open connections stay.
	Redirect(from netip.AddrPort, protocol uint8, to netip.Addr) error
	// Withdraw ends it for new connections. What is not redirected is no error.
	Withdraw(from netip.AddrPort, protocol uint8) error
	// Retain withdraws all that keep returns false for, whoever redirected it.
	Retain(keep func(from netip.AddrPort, protocol uint8) bool) error
}

// door is a NodePort on loopback addresses.
type door struct {
	from     netip.AddrPort
	protocol dataplane.Protocol
}

func doorOf(sp *dataplane.ServicePort) door {
	return door{netip.AddrPortFrom(loopback(sp.Key.Family), sp.External.NodePort), sp.Key.Protocol}
}

// redirector is what is redirected by a Redirector, which may be nil: then nothing is.
type redirector struct {
	Redirector
	targets []netip.Addr
	// doors are those that each ServicePort has, owners the ServicePort of each.
	doors  map[dataplane.ServicePortKey]door
	owners map[door]dataplane.ServicePortKey
}

func newRedirector(r Redirector) *redirector {
	return &redirector{
		Redirector: r, doors: make(map[dataplane.ServicePortKey]door), owners: make(map[door]dataplane.ServicePortKey),
	}
}

// target returns the address to lead to, which is invalid if there is none.
func (r *redirector) target(family dataplane.Family) netip.Addr {
	if r.Redirector != nil {
		for _, addr := range r.targets {
			if dataplane.FamilyOf(addr) == family {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// open redirects the NodePort of a ServicePort. It returns false if there is nowhere
// to lead it.
func (r *redirector) open(sp *dataplane.ServicePort) (bool, error) {
	to := r.target(sp.Key.Family)
	if !to.IsValid() {
		return false, nil
	}
	d := doorOf(sp)
	if err := r.Redirect(d.from, uint8(d.protocol), to); err != nil {
		return false, err
	}
	r.owners[d] = sp.Key
	if old, ok := r.doors[sp.Key]; ok && old != d {
		if err := r.close(sp.Key); err != nil {
			return true, err
		}
	}
	r.doors[sp.Key] = d
	return true, nil
}

// close withdraws the NodePort that a ServicePort has, unless it is another's by now.
func (r *redirector) close(key dataplane.ServicePortKey) error {
	d, ok := r.doors[key]
	if !ok {
		return nil
	}
	if r.owners[d] == key {
		if err := r.Withdraw(d.from, uint8(d.protocol)); err != nil {
			return err
		}
		delete(r.owners, d)
	}
	delete(r.doors, key)
	return nil
}

// closeOthers withdraws all that is of no ServicePort, as an earlier process may have
// left it.
func (r *redirector) closeOthers() error {
	if r.Redirector == nil {
		return nil
	}
	return r.Retain(func(from netip.AddrPort, protocol uint8) bool {
		_, ok := r.owners[door{from, dataplane.Protocol(protocol)}]
		return ok
	})
}

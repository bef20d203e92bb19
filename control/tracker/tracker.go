// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/topology"
	"github.com/veridict/veridict/dataplane"
)

// Options are the facts that do not come from objects.
type Options struct {
	// NodeName is this node's; other nodes are ignored.
	NodeName string
	// LocalDetector is how pods of this node are recognised.
	LocalDetector dataplane.LocalDetector
	// NodeCIDR takes the CIDRs of the detector from the Node object.
	NodeCIDR bool
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// NodeIPs, at most one per family, are used instead of the Node object's address
	// of that family.
	NodeIPs []netip.Addr
	// NodePorts says which of the node's addresses take NodePorts.
	NodePorts NodePorts
	// Localhost says what becomes of NodePorts on loopback addresses.
	Localhost dataplane.LocalhostNodePorts
}

// NodePorts says which of the node's addresses take NodePorts.
type NodePorts struct {
	// Primary are the node's IPs.
	Primary bool
	// CIDRs are the ranges that the node's other addresses are taken from. A range
	// that holds every address stands for all that there will ever be.
	CIDRs []netip.Prefix
}

// Tracker turns changes of objects into changes of the dataplane.
type Tracker struct {
	o        Options
	services map[convert.Name]*service
	slices   map[convert.Name]slice
	claims   claims
	ports    map[dataplane.ServicePortKey]dataplane.ServicePort
	problems map[*service][]convert.Problem

	node *convert.Node
	// hadNode says that there was one.
	hadNode  bool
	cidrs    map[string]*convert.ServiceCIDR
	settings dataplane.Settings

	// before holds what the last Take left behind for each ServicePort that
	// was touched since, nil for one that was not there.
	before map[dataplane.ServicePortKey]*dataplane.ServicePort
	// hinted are the Services with slices that have hints.
	hinted map[*service]struct{}
	// guarded are the Services with source ranges.
	guarded map[*service]struct{}
	// checks are the healthCheckNodePorts; checked counts changes.
	checks  map[convert.Name]HealthCheck
	checked int
	// hostAddresses are those of the node's interfaces.
	hostAddresses []netip.Addr
	// settingsBefore is nil unless the settings were touched.
	settingsBefore *dataplane.Settings
}

// service is a Service with its slices; either may be there without the other.
type service struct {
	name   convert.Name
	object *convert.Service // nil while only slices are known
	origin string
	slices []*convert.Slice // sorted by name
}

// slice is an EndpointSlice and the file that it stands in.
type slice struct {
	*convert.Slice
	origin string
}

// New returns a tracker without objects.
func New(o Options) *Tracker {
	t := &Tracker{
		o:        o,
		services: map[convert.Name]*service{},
		slices:   map[convert.Name]slice{},
		claims:   newClaims(),
		ports:    map[dataplane.ServicePortKey]dataplane.ServicePort{},
		problems: map[*service][]convert.Problem{},
		cidrs:    map[string]*convert.ServiceCIDR{},
		before:   map[dataplane.ServicePortKey]*dataplane.ServicePort{},
		hinted:   map[*service]struct{}{},
		guarded:  map[*service]struct{}{},
		checks:   map[convert.Name]HealthCheck{},
	}
	t.settings = t.makeSettings()
	// Whoever takes an update first has never seen any settings.
	t.settingsBefore = &dataplane.Settings{}
	return t
}

// Apply takes one batch of changes, all of which take effect together.
func (t *Tracker) Apply(changes []convert.Change) {
	touched := map[*service]struct{}{}
	settings := false
	for _, change := range changes {
		switch change.Key.Kind {
		case convert.KindService:
			object, _ := change.Object.(*convert.Service)
			t.setService(change.Key.Name, object, change.Origin, touched)
		case convert.KindEndpointSlice:
			object, _ := change.Object.(*convert.Slice)
			t.setSlice(change.Key.Name, object, change.Origin, touched)
		case convert.KindNode:
			if change.Key.Name.Name == t.o.NodeName {
				t.setNode(change, touched)
				settings = true
			}
		case convert.KindServiceCIDR:
			t.setCIDR(change)
			settings = true
		}
	}
	for svc := range touched {
		t.recompute(svc)
		if svc.object == nil && len(svc.slices) == 0 {
			delete(t.services, svc.name)
		}
	}
	if settings {
		t.recomputeSettings()
	}
}

// HasNode says whether this node's object is known.
func (t *Tracker) HasNode() bool { return t.node != nil }

// NodeEligible says whether load balancers should send connections here: not if this
// node's object is gone or about to go. While there never was one it is.
func (t *Tracker) NodeEligible() bool {
	if t.node == nil {
		return !t.hadNode
	}
	return !t.node.Leaving
}

// Settings returns the settings of State.
func (t *Tracker) Settings() dataplane.Settings { return t.settings }

// State returns everything that should be programmed. The caller may keep it.
func (t *Tracker) State() dataplane.State {
	return dataplane.State{Settings: t.settings, ServicePorts: maps.Clone(t.ports)}
}

// TakeState returns the whole state and forgets what has changed until now.
func (t *Tracker) TakeState() dataplane.State {
	t.forget()
	return t.State()
}

// Take returns what has changed since the last Take or TakeState, or since New.
// What was changed and changed back is not in it.
func (t *Tracker) Take() dataplane.Update {
	var update dataplane.Update
	for key, before := range t.before {
		now, exists := t.ports[key]
		switch {
		case !exists && before != nil:
			update.Removed = append(update.Removed, key)
		case exists && (before == nil || !before.Equal(&now)):
			update.Changed = append(update.Changed, now)
		}
	}
	slices.SortFunc(update.Removed, dataplane.ServicePortKey.Compare)
	slices.SortFunc(update.Changed, func(a, b dataplane.ServicePort) int { return a.Key.Compare(b.Key) })
	if t.settingsBefore != nil && !t.settingsBefore.Equal(&t.settings) {
		settings := t.settings
		update.Settings = &settings
	}
	t.forget()
	return update
}

// forget makes what is there now what was last taken. A new map does not keep
// the memory of a large one.
func (t *Tracker) forget() {
	t.before = map[dataplane.ServicePortKey]*dataplane.ServicePort{}
	t.settingsBefore = nil
}

// Touched says whether Take may have something to return.
func (t *Tracker) Touched() bool { return len(t.before) > 0 || t.settingsBefore != nil }

// Problems returns what keeps objects from being served as they ask for, in a
// stable order.
func (t *Tracker) Problems() []convert.Problem {
	var all []convert.Problem
	for _, problems := range t.problems {
		all = append(all, problems...)
	}
	slices.SortFunc(all, convert.Problem.Compare)
	return all
}

func (t *Tracker) service(name convert.Name) *service {
	svc := t.services[name]
	if svc == nil {
		svc = &service{name: name}
		t.services[name] = svc
	}
	return svc
}

func (t *Tracker) setService(name convert.Name, object *convert.Service, origin string, touched map[*service]struct{}) {
	svc := t.service(name)
	touched[svc] = struct{}{}
	// The ServicePorts of before are dropped here and made again by
	// recompute, which also covers ports that were renamed.
	for key := range svc.keys() {
		t.setPort(key, nil)
	}
	released := t.claims.release(svc)
	svc.object, svc.origin = object, origin
	claimed := t.claims.claim(svc)
	for _, other := range append(released, claimed...) {
		touched[other] = struct{}{}
	}
}

func (t *Tracker) setSlice(name convert.Name, object *convert.Slice, origin string, touched map[*service]struct{}) {
	if object != nil && object.Service == "" {
		object = nil
	}
	if old, found := t.slices[name]; found {
		svc := t.service(convert.Name{Namespace: name.Namespace, Name: old.Service})
		svc.removeSlice(name)
		touched[svc] = struct{}{}
		delete(t.slices, name)
	}
	if object == nil {
		return
	}
	svc := t.service(convert.Name{Namespace: name.Namespace, Name: object.Service})
	svc.addSlice(object)
	touched[svc] = struct{}{}
	t.slices[name] = slice{object, origin}
}

func compareSliceName(s *convert.Slice, name convert.Name) int { return s.Name.Compare(name) }

func (s *service) addSlice(object *convert.Slice) {
	at, _ := slices.BinarySearchFunc(s.slices, object.Name, compareSliceName)
	s.slices = slices.Insert(s.slices, at, object)
}

func (s *service) removeSlice(name convert.Name) {
	if at, found := slices.BinarySearchFunc(s.slices, name, compareSliceName); found {
		s.slices = slices.Delete(s.slices, at, at+1)
	}
}

// setPort makes the ServicePort of a key what it should be, nil for none.
func (t *Tracker) setPort(key dataplane.ServicePortKey, want *dataplane.ServicePort) {
	now, exists := t.ports[key]
	if !exists && want == nil {
		return
	}
	if _, noted := t.before[key]; !noted {
		t.before[key] = nil
		if exists {
			t.before[key] = &now
		}
	}
	if want == nil {
		delete(t.ports, key)
		return
	}
	t.ports[key] = *want
}

func (t *Tracker) setCIDR(change convert.Change) {
	object, _ := change.Object.(*convert.ServiceCIDR)
	if object == nil {
		delete(t.cidrs, change.Key.Name.Name)
		return
	}
	t.cidrs[object.Name] = object
}

func (t *Tracker) recomputeSettings() {
	want := t.makeSettings()
	if want.Equal(&t.settings) {
		return
	}
	if t.settingsBefore == nil {
		before := t.settings
		t.settingsBefore = &before
	}
	t.settings = want
}

// setNode takes this node's object. Where it is decides which endpoints hints are
// for, and its IPs are let through source ranges that hold one of them.
func (t *Tracker) setNode(change convert.Change, touched map[*service]struct{}) {
	before, ips := t.here(), t.nodeIPs()
	t.node, _ = change.Object.(*convert.Node)
	t.hadNode = t.hadNode || t.node != nil
	if t.here() != before {
		maps.Copy(touched, t.hinted)
	}
	if !slices.Equal(t.nodeIPs(), ips) {
		maps.Copy(touched, t.guarded)
	}
}

// here returns where this proxy runs.
func (t *Tracker) here() topology.Node {
	node := topology.Node{Name: t.o.NodeName}
	if t.node != nil {
		node.Zone = t.node.Zone
	}
	return node
}

// nodeIPs returns the node's IPs, at most one per family. Those of the options go
// before those of the Node object.
func (t *Tracker) nodeIPs() []netip.Addr {
	ips := slices.Clone(t.o.NodeIPs)
	if t.node == nil {
		return ips
	}
	for _, addr := range t.node.HostIPs() {
		if len(convert.OfFamily(ips, dataplane.FamilyOf(addr))) == 0 {
			ips = append(ips, addr)
		}
	}
	return ips
}

// SetHostAddresses takes the addresses of the node's interfaces.
func (t *Tracker) SetHostAddresses(addrs []netip.Addr) {
	t.hostAddresses = slices.Clone(addrs)
	t.recomputeSettings()
}

func (t *Tracker) makeSettings() dataplane.Settings {
	settings := dataplane.Settings{
		LocalDetector: t.o.LocalDetector, MasqueradeAll: t.o.MasqueradeAll, Localhost: t.o.Localhost,
	}
	if t.o.NodeCIDR && t.node != nil {
		settings.LocalDetector.CIDRs = convert.FirstPerFamily(t.node.PodCIDRs)
	}
	for _, cidr := range t.cidrs {
		settings.ServiceCIDRs = append(settings.ServiceCIDRs, cidr.CIDRs...)
	}
	slices.SortFunc(settings.ServiceCIDRs, netip.Prefix.Compare)
	settings.ServiceCIDRs = slices.Compact(settings.ServiceCIDRs)
	t.setNodePorts(&settings)
	if t.o.Localhost == dataplane.LocalhostProxied {
		settings.LocalhostTargets = t.localhostTargets(&settings)
	}
	return settings
}

// localhostTargets chooses of the addresses that take NodePorts the node's IP, or the
// first of the family where that is not one.
func (t *Tracker) localhostTargets(settings *dataplane.Settings) []netip.Addr {
	var targets []netip.Addr
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		candidates := convert.OfFamily(settings.NodePortAddresses, family)
		if slices.Contains(settings.AllAddresses, family) {
			candidates = convert.OfFamily(t.hostAddresses, family)
		}
		candidates = slices.DeleteFunc(candidates, func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
		if len(candidates) == 0 {
			continue
		}
		target := candidates[0]
		for _, ip := range convert.OfFamily(t.nodeIPs(), family) {
			if slices.Contains(candidates, ip) {
				target = ip
			}
		}
		targets = append(targets, target)
	}
	return targets
}

// setNodePorts fills in which addresses take NodePorts. A family that nothing is
// said about takes them on all, as kube-proxy has it.
func (t *Tracker) setNodePorts(settings *dataplane.Settings) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		addrs, all, said := t.nodePortsOf(family)
		if all || !said {
			settings.AllAddresses = append(settings.AllAddresses, family)
			continue
		}
		settings.NodePortAddresses = append(settings.NodePortAddresses, addrs...)
	}
	slices.SortFunc(settings.NodePortAddresses, netip.Addr.Compare)
	settings.NodePortAddresses = slices.Compact(settings.NodePortAddresses)
}

func (t *Tracker) nodePortsOf(family dataplane.Family) (addrs []netip.Addr, all, said bool) {
	var cidrs []netip.Prefix
	for _, cidr := range t.o.NodePorts.CIDRs {
		if dataplane.FamilyOf(cidr.Addr()) == family {
			cidrs = append(cidrs, cidr)
			all = all || cidr.Bits() == 0
		}
	}
	said = len(cidrs) > 0
	if t.o.NodePorts.Primary {
		// Until the node's IPs are known there are none, rather than all.
		said = said || len(t.nodeIPs()) == 0
		for _, addr := range convert.OfFamily(t.nodeIPs(), family) {
			addrs, said = append(addrs, addr), true
		}
	}
	for _, addr := range convert.OfFamily(t.hostAddresses, family) {
		if !addr.IsLoopback() && slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(addr) }) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, all, said
}

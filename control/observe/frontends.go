// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"

	"github.com/veridict/veridict/dataplane"
)

// frontends keeps the probes' list of frontends equal to what is programmed. It
// belongs to the goroutine that programs: a frontend has to be known before its first
// connection, or that would count as foreign.
type frontends struct {
	probes Probes
	log    *slog.Logger
	// programmed are the ServicePorts of the last success.
	programmed map[dataplane.ServicePortKey]*dataplane.ServicePort
	// owners say who had a frontend last.
	owners map[FrontendID]dataplane.ServicePortKey
	// pending and removed are what the probes have to be told, never both of one.
	pending map[FrontendID]Frontend
	removed map[FrontendID]struct{}
	failed  bool
}

func newFrontends(probes Probes, log *slog.Logger) frontends {
	return frontends{
		probes: probes, log: log,
		programmed: make(map[dataplane.ServicePortKey]*dataplane.ServicePort),
		owners:     make(map[FrontendID]dataplane.ServicePortKey),
		pending:    make(map[FrontendID]Frontend), removed: make(map[FrontendID]struct{}),
	}
}

// addAll and add tell the probes of what is about to be programmed.
func (f *frontends) addAll(ports map[dataplane.ServicePortKey]dataplane.ServicePort) {
	for _, sp := range ports {
		f.want(&sp)
	}
	f.flush()
}

func (f *frontends) add(ports []dataplane.ServicePort) {
	for i := range ports {
		f.want(&ports[i])
	}
	f.flush()
}

// want enters the frontends of a ServicePort that are new to it.
func (f *frontends) want(sp *dataplane.ServicePort) {
	old := f.programmed[sp.Key]
	same := old != nil && old.AffinitySeconds == sp.AffinitySeconds
	for _, id := range frontendsOf(sp) {
		if same && f.owners[id] == sp.Key {
			continue
		}
		f.owners[id] = sp.Key
		delete(f.removed, id)
		f.pending[id] = Frontend{FrontendID: id, AffinitySeconds: sp.AffinitySeconds, Service: serviceID(sp.Key)}
	}
}

// differs says whether the ServicePort was not programmed like this at last.
func (f *frontends) differs(sp *dataplane.ServicePort) bool {
	old := f.programmed[sp.Key]
	return old == nil || !old.Equal(sp)
}

// differing returns those of the programmed ones that are not like this in ports.
func (f *frontends) differing(ports map[dataplane.ServicePortKey]dataplane.ServicePort) []dataplane.ServicePortKey {
	var keys []dataplane.ServicePortKey
	for key := range f.programmed {
		if sp, stays := ports[key]; !stays || f.differs(&sp) {
			keys = append(keys, key)
		}
	}
	return keys
}

// note has the ServicePort be programmed, and says whether it was otherwise before.
func (f *frontends) note(sp *dataplane.ServicePort) bool {
	if !f.differs(sp) {
		return false
	}
	old := f.programmed[sp.Key]
	f.programmed[sp.Key] = sp
	if old != nil {
		f.release(old, frontendsOf(sp))
	}
	return true
}

// remove takes a ServicePort out.
func (f *frontends) remove(key dataplane.ServicePortKey) {
	if old := f.programmed[key]; old != nil {
		delete(f.programmed, key)
		f.release(old, nil)
	}
}

// retain removes all that is not in ports, and returns what it was.
func (f *frontends) retain(ports map[dataplane.ServicePortKey]dataplane.ServicePort) []dataplane.ServicePortKey {
	var gone []dataplane.ServicePortKey
	for key := range f.programmed {
		if _, stays := ports[key]; !stays {
			gone = append(gone, key)
			f.remove(key)
		}
	}
	f.flush()
	return gone
}

// release gives up the frontends of old that are not kept and that nobody else has
// taken over.
func (f *frontends) release(old *dataplane.ServicePort, kept []FrontendID) {
	for _, id := range frontendsOf(old) {
		if f.owners[id] == old.Key && !slices.Contains(kept, id) {
			delete(f.owners, id)
			delete(f.pending, id)
			f.removed[id] = struct{}{}
		}
	}
}

// flush tells the probes. What they refuse is tried again with the next change.
func (f *frontends) flush() {
	if f.probes == nil {
		clear(f.pending)
		clear(f.removed)
		return
	}
	if len(f.pending)+len(f.removed) == 0 {
		return
	}
	changed := slices.Collect(maps.Values(f.pending))
	err := f.probes.SetFrontends(changed, slices.Collect(maps.Keys(f.removed)))
	if err != nil {
		if !f.failed {
			f.log.Error("cannot tell the probes which connections are for Services; they count as foreign", "err", err)
		}
		f.failed = true
		return
	}
	f.failed = false
	// Not cleared: that takes as long as the largest update did.
	f.pending, f.removed = make(map[FrontendID]Frontend), make(map[FrontendID]struct{})
}

func frontendsOf(sp *dataplane.ServicePort) []FrontendID {
	vips := sp.VIPs()
	ids := make([]FrontendID, len(vips))
	for i, vip := range vips {
		ids[i] = FrontendID{VIP: vip, Family: sp.Key.Family}
	}
	return ids
}

// serviceID is the same in every process, so that pins outlive it.
func serviceID(key dataplane.ServicePortKey) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key.String()))
	return h.Sum32()
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

func TestAlarms(t *testing.T) {
	t.Parallel()
	sp := web("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
	even := func(r *rig, n uint64) {
		for _, ep := range sp.Endpoints {
			r.draw(sp.VIP(), ep.Addr.String(), n)
		}
	}
	tests := []struct {
		name string
		// interval is what happens in each.
		interval func(r *rig)
		want     string
	}{
		{"even", func(r *rig) { even(r, 1000) }, ""},
		{"an endpoint that is not known", func(r *rig) { even(r, 10); r.draw(sp.VIP(), "10.9.9.9:80", 1) }, "unknown-endpoint"},
		{"not translated", func(r *rig) { even(r, 10); r.draw(sp.VIP(), "10.96.0.1:80", 1) }, "missed-service"},
		{"one left out", func(r *rig) {
			r.draw(sp.VIP(), "10.0.0.1:80", 500)
			r.draw(sp.VIP(), "10.0.0.2:80", 500)
		}, "never-selected uneven"},
		{"one twice as often", func(r *rig) { even(r, 300); r.draw(sp.VIP(), "10.0.0.1:80", 300) }, "uneven"},
		{"no room", func(r *rig) { r.probes.losses.Full++ }, "probes-full"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig()
			r.sync(t, list(sp))
			r.read()
			for range 4 {
				test.interval(r)
				r.read()
			}
			s := r.Snapshot()
			want(t, "alarms", kinds(s), test.want)
			for _, a := range s.Alarms {
				if n := strings.Count(r.log.String(), "alarm="+string(a.Kind)); n != 1 {
					t.Errorf("%s is logged %d times, want once:\n%s", a.Kind, n, &r.log)
				}
				if a.Kind != observe.ProbesFull && !strings.Contains(a.Text, "shop/web") {
					t.Errorf("the alarm does not name the Service: %s", a.Text)
				}
			}
			// Another set of endpoints begins anew; what was wrong is over after a while.
			r.sync(t, list(web("10.0.0.1:80", "10.0.0.2:80", "10.0.0.4:80")))
			for range 16 {
				s = r.read()
			}
			want(t, "alarms afterwards", kinds(s), "")
			want(t, "logged ends", strings.Count(r.log.String(), "alarm is over"), len(strings.Fields(test.want)))
		})
	}
}

// Connections to a Service that has no endpoints for them are no alarm.
func TestNoAlarmWithoutEndpoints(t *testing.T) {
	t.Parallel()
	none, local := web(), web("10.0.0.1:80")
	local.InternalLocal = true
	external := web("10.0.0.1:80")
	external.External = &dataplane.External{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Local: true}
	for name, sp := range map[string]dataplane.ServicePort{"none": none, "none here": local, "none for outsiders": external} {
		r := newRig()
		r.sync(t, list(sp))
		r.read()
		vips := sp.VIPs()
		vip := vips[len(vips)-1]
		for range 3 {
			r.draw(vip, netip.AddrPortFrom(vip.Addr, vip.Port).String(), 1)
			r.read()
		}
		want(t, name+": alarms", kinds(r.read()), "")
		want(t, name+": missed", r.Snapshot().Services[0].Missed, 3)
	}
}

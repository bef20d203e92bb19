// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// Counters go on when the agent is started anew, however it ended, and connections
// that were opened meanwhile are counted.
func TestCountersOutliveTheAgent(t *testing.T) {
	n := newNode(t)
	tcp := newService("web", 1, dataplane.TCP, 8080, 3)
	udp := newService("dns", 2, dataplane.UDP, 5353, 4)
	n.serve(t, tcp)
	n.serve(t, udp)
	n.write(t, tcp, udp)
	tr := newTraffic(n.cluster)
	want := make(map[string]uint64)
	connect := func() {
		for endpoint, count := range tr.connect(t, 50, tcp.vip, udp.vip) {
			want[endpoint] += count
		}
	}
	n.start(t)
	connect()
	for _, end := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		n.stop(t, end)
		connect()
		n.start(t)
		equal(t, "selections after "+end.String(), n.totals(t, tcp, udp), want)
		connect()
		equal(t, "selections of the next agent", n.totals(t, tcp, udp), want)
	}
	var sum uint64
	for count := range maps.Values(want) {
		sum += count
	}
	status := n.status(t)
	equal(t, "selections", status.Probes.Selections, sum)
	equal(t, "pin path", status.Probes.PinPath, n.pins)
	equal(t, "alarms", status.Alarms, []api.Alarm{})
}

// totals returns the connections of each endpoint. It fails the test if they are not
// all of the Service.
func (n *node) totals(t testing.TB, services ...*service) map[string]uint64 {
	t.Helper()
	all := make(map[string]uint64)
	for _, s := range services {
		got := n.service(t, s)
		var sum uint64
		for _, ep := range got.Pools[0].Endpoints {
			all[ep.Address] = ep.Total
			sum += ep.Total
		}
		equal(t, "connections to the endpoints of "+s.name, sum, got.Selections)
	}
	return all
}

// Without probes all is served alike, the commands say why they have nothing to tell,
// and no pin is left of an agent that had some.
func TestObserveOff(t *testing.T) {
	n := newNode(t)
	tcp := newService("web", 1, dataplane.TCP, 8080, 3)
	udp := newService("dns", 2, dataplane.UDP, 5353, 1)
	empty := newService("empty", 3, dataplane.TCP, 8080, 0)
	n.serve(t, tcp)
	n.serve(t, udp)
	n.write(t, tcp, udp, empty)
	tr := newTraffic(n.cluster)
	outcomes := func() map[string]string {
		all := make(map[string]string)
		for _, s := range []*service{tcp, udp, empty} {
			_, err := tr.ask(t, s.vip)
			all[s.name] = testbed.Reason(err)
		}
		closed := tcp.vip
		closed.Port++
		_, err := tr.ask(t, closed)
		all["closed port"] = testbed.Reason(err)
		return all
	}
	n.start(t)
	observed, rules := outcomes(), nft(t, "list ruleset")
	equal(t, "outcomes", observed, map[string]string{"web": "", "dns": "", "empty": "refused", "closed port": "refused"})
	equal(t, "mode", n.status(t).Probes.Mode, observe.Netfilter)
	if _, err := os.Stat(n.pins); err != nil {
		t.Error("nothing is pinned:", err)
	}
	n.stop(t, unix.SIGTERM)

	n.start(t, "--observe", "off")
	equal(t, "outcomes without probes", outcomes(), observed)
	equal(t, "rules without probes", nft(t, "list ruleset"), rules)
	if _, err := os.Stat(n.pins); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pins are still there: %v", err)
	}
	status := n.status(t)
	equal(t, "probes", status.Probes.ProbeStatus, observe.ProbeStatus{Mode: observe.Off, Reason: status.Probes.Reason})
	out, err := n.run(t, "status", "--socket", n.socket)
	must(t, "status", err)
	if line := fmt.Sprintf("probes     off      %s\n", status.Probes.Reason); status.Probes.Reason == "" || !strings.Contains(out, line) {
		t.Errorf("status does not say %q:\n%s", line, out)
	}
	equal(t, "selections", n.service(t, tcp).Selections, uint64(0))
	equal(t, "programmed", status.Dataplane.ServicePorts, 3)
}

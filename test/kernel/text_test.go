// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// elsewhere runs a test in a fresh network namespace.
func elsewhere(t testing.TB, test func() error) {
	t.Helper()
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(test); err != nil {
		t.Error(err)
	}
}

// loads expects the text to make, elsewhere, the tables that the state wants.
func loads(t testing.TB, layout nftables.Layout, text string, state dataplane.State) {
	t.Helper()
	elsewhere(t, func() error {
		if _, err := tryNFT(text); err != nil {
			return err
		}
		differences, err := nftables.Verify(context.Background(), nftables.Options{Layout: layout}, state)
		for _, d := range differences {
			t.Error("loaded elsewhere:", d)
		}
		return err
	})
}

func TestListingLoadsAgain(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		state := everything()
		clock := newClock()
		options := quiet(layout)
		options.Now = clock.Now
		s := newSyncer(t, options)
		mustReset(t, s, state)
		settle(t, s, clock)
		loads(t, layout, list(t, "ruleset"), state)

		out, err := exec.CommandContext(t.Context(), "nft", "-j", "list", "ruleset").Output()
		if err != nil {
			t.Fatal("nft -j list ruleset:", err)
		}
		var objects struct{ Nftables []map[string]any }
		if err := json.Unmarshal(out, &objects); err != nil {
			t.Fatal("nft -j list ruleset:", err)
		}
		if len(objects.Nftables) < 100 {
			t.Errorf("nft -j list ruleset shows %d objects only", len(objects.Nftables))
		}
	})
}

func TestRenderLoads(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		for name, state := range map[string]dataplane.State{
			"empty": {}, "small": smallState(), "everything": everything(), "default settings": withSettings(smallState(), dataplane.Settings{}),
			"bridge": withSettings(smallState(), dataplane.Settings{LocalDetector: dataplane.LocalDetector{Interface: "br0"}}),
			"prefix": withSettings(smallState(), dataplane.Settings{LocalDetector: dataplane.LocalDetector{InterfacePrefix: "veth"}}),
			"all":    withSettings(smallState(), dataplane.Settings{MasqueradeAll: true}),
		} {
			t.Run(name, func(t *testing.T) {
				var text bytes.Buffer
				if err := nftables.Render(&text, nftables.Options{Layout: layout}, state); err != nil {
					t.Fatal(err)
				}
				loads(t, layout, text.String(), state)
			})
		}
	})
}

// everything has all kinds of elements and chains that the nft program can read back:
// not the chains that write IPv6 pins.
func everything() dataplane.State {
	state := smallState()
	endpoints := endpointsFrom(netip.MustParseAddrPort("10.244.0.1:8080"), 3)
	outside := netip.MustParseAddr("192.0.2.10")
	full := port("full", netip.MustParseAddrPort("10.96.7.1:80"), dataplane.TCP, endpoints...)
	full.AffinitySeconds, full.LocalEndpoints = 10800, full.Endpoints[:1]
	full.External = &dataplane.External{
		IPs: []netip.Addr{outside}, NodePort: 30080, Local: true, Guarded: []netip.Addr{outside},
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.51.100.7/32")},
	}
	hashed := port("hashed", netip.MustParseAddrPort("10.96.7.2:53"), dataplane.UDP, endpoints...)
	hashed.Algorithm, hashed.Endpoints[0].Weight = dataplane.SourceHash, 3
	hashed.External = &dataplane.External{NodePort: 30053}
	sticky := port("sticky", netip.MustParseAddrPort("10.96.7.3:9"), dataplane.SCTP, endpoints...)
	sticky.AffinitySeconds = 60
	elsewhere6 := port("elsewhere", netip.MustParseAddrPort("[fd00:10:96::703]:80"), dataplane.TCP, netip.MustParseAddrPort("[fd00:10:244::1]:80"))
	elsewhere6.InternalLocal, elsewhere6.External = true, &dataplane.External{NodePort: 30080, Local: true}
	for _, sp := range []dataplane.ServicePort{full, hashed, sticky, elsewhere6} {
		state.ServicePorts[sp.Key] = sp
	}
	state.Settings.NodePortAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	state.Settings.AllAddresses = []dataplane.Family{dataplane.IPv6}
	state.Settings.Localhost = dataplane.LocalhostRejected
	return state
}

func withSettings(state dataplane.State, settings dataplane.Settings) dataplane.State {
	state.Settings = settings
	return state
}

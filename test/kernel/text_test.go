// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"context"
	"encoding/json"
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
		state := smallState()
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
			"empty": {}, "small": smallState(), "default settings": withSettings(smallState(), dataplane.Settings{}),
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

func withSettings(state dataplane.State, settings dataplane.Settings) dataplane.State {
	state.Settings = settings
	return state
}

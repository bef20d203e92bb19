// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/health"
)

// TestPages has kube-proxy's meaning of each page.
func TestPages(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0).UTC()
	proxy := health.NewProxy(time.Minute, func() time.Time { return now })
	answered := map[string]int{}
	handler := proxy.Handler(func(page string, status int) { answered[page] = status })
	for _, step := range []struct {
		name   string
		do     func()
		want   map[string]int
		fields map[string]any
	}{
		{
			name: "nothing has happened yet", do: func() {},
			want:   map[string]int{"healthz": 200, "livez": 200, "readyz": 503},
			fields: map[string]any{"healthy": true, "nodeEligible": true, "lastUpdated": "1970-01-01T00:16:40Z"},
		},
		{
			name: "programmed", do: func() { proxy.Queued(); proxy.Updated(now) },
			want: map[string]int{"healthz": 200, "livez": 200, "readyz": 200}, fields: map[string]any{"healthy": true},
		},
		{
			name: "the node is about to go", do: func() { proxy.SetEligible(false) },
			want: map[string]int{"healthz": 503, "livez": 200, "readyz": 200}, fields: map[string]any{"healthy": false, "nodeEligible": false},
		},
		{
			name: "the API server is away", do: func() { proxy.SetEligible(true); proxy.SetOutages([]string{"away"}) },
			want: map[string]int{"healthz": 200, "livez": 200, "readyz": 200}, fields: map[string]any{"outages": []any{"away"}},
		},
		{
			name: "a change waits for too long", do: func() { proxy.Queued(); now = now.Add(2 * time.Minute) },
			want:   map[string]int{"healthz": 503, "livez": 503, "readyz": 200},
			fields: map[string]any{"healthy": false, "lastUpdated": "1970-01-01T00:16:40Z", "currentTime": "1970-01-01T00:18:40Z"},
		},
	} {
		step.do()
		var body map[string]any
		for page := range step.want {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+page, nil))
			if page == "healthz" {
				if err := json.Unmarshal(recorder.Body.Bytes(), &body); err != nil {
					t.Fatal(err)
				}
			}
		}
		if diff := cmp.Diff(step.want, answered); diff != "" {
			t.Errorf("%s: status (-want +got):\n%s", step.name, diff)
		}
		for field, want := range step.fields {
			if diff := cmp.Diff(want, body[field]); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", step.name, field, diff)
			}
		}
	}
}

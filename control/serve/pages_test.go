// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/veridict/veridict/control/serve"
)

func TestPages(t *testing.T) {
	t.Parallel()
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a 1\n")) })
	for _, test := range []struct {
		request   string
		profiling bool
		status    int
		answer    string
	}{
		{"GET /metrics", false, http.StatusOK, "a 1\n"},
		{"HEAD /metrics", false, http.StatusOK, ""},
		{"POST /metrics", false, http.StatusMethodNotAllowed, ""},
		{"GET /proxyMode", false, http.StatusOK, "nftables"},
		{"GET /healthz", false, http.StatusOK, "ok"},
		{"GET /configz", false, http.StatusOK, "{}"},
		{"GET /", false, http.StatusNotFound, ""},
		{"GET /debug/pprof/", false, http.StatusNotFound, ""},
		{"GET /debug/pprof/", true, http.StatusOK, "goroutine"},
		{"GET /debug/pprof/cmdline", true, http.StatusOK, "test"},
	} {
		method, path, _ := strings.Cut(test.request, " ")
		pages := serve.Pages{Metrics: metrics, Config: []byte("{}"), Profiling: test.profiling}
		recorder := httptest.NewRecorder()
		pages.Handler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		if recorder.Code != test.status || !strings.Contains(recorder.Body.String(), test.answer) {
			t.Errorf("%s, profiling %v: status %d, answer %q", test.request, test.profiling, recorder.Code, recorder.Body)
		}
	}
}

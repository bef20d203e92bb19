// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Answered is told the status of each answer of a page: "healthz", "livez" or
// "readyz".
type Answered func(page string, status int)

// state is the body of /healthz and /livez, with kube-proxy's names.
type state struct {
	// LastUpdated is the time of the answer while all is well, as in kube-proxy, and
	// that of the last success otherwise.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is what only /healthz has.
	NodeEligible *bool                  `json:"nodeEligible,omitempty"`
	Healthy      bool                   `json:"healthy"`
	Status       map[string]familyState `json:"status"`
	// Outages are not kube-proxy's: what cannot be read at the moment.
	Outages []string `json:"outages,omitempty"`
}

type familyState struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler answers what kube-proxy does at its healthzBindAddress. /healthz, which
// load balancers ask, is 503 while a change waits for too long and where the node is
// about to go; /livez only for the former. /readyz, which kube-proxy does not have, is
// 503 before everything was programmed for the first time. answered may be nil.
func (p *Proxy) Handler(answered Answered) http.Handler {
	if answered == nil {
		answered = func(string, int) {}
	}
	mux := http.NewServeMux()
	for page, answer := range map[string]func() (any, bool){
		"healthz": func() (any, bool) { return p.state(true) },
		"livez":   func() (any, bool) { return p.state(false) },
		"readyz":  p.ready,
	} {
		mux.HandleFunc("GET /"+page, func(w http.ResponseWriter, _ *http.Request) {
			body, well := answer()
			status := http.StatusOK
			if !well {
				status = http.StatusServiceUnavailable
			}
			answered(page, status)
			header := w.Header()
			header.Set("Content-Type", "application/json")
			header.Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(body)
		})
	}
	return mux
}

func (p *Proxy) state(forBalancers bool) (any, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	s := state{LastUpdated: now, CurrentTime: now, Healthy: p.healthy(now), Outages: p.outages, Status: map[string]familyState{}}
	if !s.Healthy {
		s.LastUpdated = p.updated
	}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		s.Status[family.String()] = familyState{LastUpdated: s.LastUpdated, Healthy: s.Healthy}
	}
	if forBalancers {
		eligible := !p.leaving
		s.NodeEligible = &eligible
		s.Healthy = s.Healthy && eligible
	}
	return s, s.Healthy
}

func (p *Proxy) ready() (any, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready := !p.updated.IsZero()
	return map[string]bool{"ready": ready}, ready
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// The cluster of the affinity figures.
const (
	affinityServices  = 5000
	stickyServices    = 500
	stickyEndpoints   = 20
	affinitySeconds   = 10800
	affinityColdLimit = 1.3
)

// affinityState is a cluster in which some Services have more endpoints than the
// others, and session affinity if sticky is set.
func affinityState(endpoints int, sticky bool) dataplane.State {
	s := state(affinityServices-stickyServices, endpoints)
	for service := affinityServices - stickyServices; service < affinityServices; service++ {
		sp := servicePort(service, stickyEndpoints)
		if sticky {
			sp.AffinitySeconds = affinitySeconds
		}
		s.ServicePorts[sp.Key] = sp
	}
	return s
}

// affinityColdStart compares a start with and without session affinity, and with
// kube-proxy's layout for the same objects.
func (b *bench) affinityColdStart(ctx context.Context, r *report) error {
	var with, without, theirs []float64
	text := filepath.Join(b.dir, "kube-proxy.nft")
	if err := writeText(text, kubeProxyLayout(affinityState(b.options.endpoints, true))); err != nil {
		return err
	}
	for round := range b.options.rounds {
		b.progress("affinity, cold start, round %d of %d", round+1, b.options.rounds)
		for _, contender := range []struct {
			sticky bool
			into   *[]float64
		}{{true, &with}, {false, &without}} {
			took, err := b.program(ctx, affinityState(b.options.endpoints, contender.sticky))
			if err != nil {
				return err
			}
			*contender.into = append(*contender.into, took.Seconds())
		}
	}
	b.progress("affinity, cold start in kube-proxy's layout, once, at most %s", patience)
	took, err := b.loadOnce(ctx, text)
	if err != nil {
		return err
	}
	theirs = append(theirs, took.Seconds())
	subject := fmt.Sprintf("cold start, %d Services x %d endpoints, %d of them x %d with session affinity",
		affinityServices, b.options.endpoints, stickyServices, stickyEndpoints)
	r.note(subject, "veridict, with affinity", median(with), "s")
	r.note(subject, "veridict, the same without affinity", median(without), "s")
	r.atMost(subject, "times as long with affinity", ratio(with, without), "", affinityColdLimit)
	r.note(subject, "nft -f of kube-proxy's layout (chain, set and rule per endpoint), one round", median(theirs), "s")
	return nil
}

// program takes a state to an empty kernel.
func (b *bench) program(ctx context.Context, s dataplane.State) (time.Duration, error) {
	if err := flush(ctx); err != nil {
		return 0, err
	}
	syncer, err := nftables.New(ctx, nftables.Options{Logger: b.log})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	_, err = syncer.Reset(ctx, s)
	took := time.Since(start)
	return took, errors.Join(err, syncer.Close())
}

// loadOnce runs nft -f in a namespace of its own. A run that takes too long counts
// with the time that it was given.
func (b *bench) loadOnce(ctx context.Context, text string) (time.Duration, error) {
	cmd, cancel := alone(ctx, "nft", "-f", text)
	defer cancel()
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil && took < patience {
		return 0, fmt.Errorf("nft -f of kube-proxy's layout: %w", err)
	}
	return took, nil
}

func flush(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		return fmt.Errorf("nft flush ruleset: %w: %s", err, out)
	}
	return nil
}

// kubeProxyLayout returns the rules that kube-proxy 1.37 has for the ClusterIPs of a
// state: a chain with an anonymous map for each Service and, with session affinity, a
// set, a chain and a rule for each of its endpoints.
func kubeProxyLayout(s dataplane.State) string {
	var chains, elements strings.Builder
	n := 0
	for _, sp := range s.ServicePorts {
		n++
		name := fmt.Sprintf("service-%d", n)
		vip := sp.VIP()
		fmt.Fprintf(&elements, "%s . %s . %d : goto %s,\n", vip.Addr, vip.Protocol, vip.Port, name)
		if sp.AffinitySeconds == 0 {
			plainService(&chains, name, &sp)
		} else {
			stickyService(&chains, name, &sp)
		}
	}
	return fmt.Sprintf("table ip kube-proxy {\n%smap service-ips {\ntype ipv4_addr . inet_proto . inet_service : verdict\nelements = {\n%s}\n}\n"+
		"chain services {\nip daddr . meta l4proto . th dport vmap @service-ips\n}\n"+
		"chain nat-prerouting {\ntype nat hook prerouting priority -100;\njump services\n}\n"+
		"chain nat-output {\ntype nat hook output priority -100;\njump services\n}\n}\n", chains.String(), elements.String())
}

func plainService(w *strings.Builder, name string, sp *dataplane.ServicePort) {
	fmt.Fprintf(w, "chain %s {\nmeta l4proto %s dnat ip addr . port to numgen random mod %d map {\n", name, sp.Key.Protocol, len(sp.Endpoints))
	for i, ep := range sp.Endpoints {
		fmt.Fprintf(w, "%d : %s . %d,\n", i, ep.Addr.Addr(), ep.Addr.Port())
	}
	w.WriteString("}\n}\n")
}

func stickyService(w *strings.Builder, name string, sp *dataplane.ServicePort) {
	var rules, choices strings.Builder
	for i, ep := range sp.Endpoints {
		endpoint := fmt.Sprintf("endpoint-%s-%d", name, i)
		fmt.Fprintf(w, "set affinity-%s {\ntype ipv4_addr\nflags dynamic,timeout\ntimeout %ds\n}\n", endpoint, sp.AffinitySeconds)
		fmt.Fprintf(w, "chain %[1]s {\nupdate @affinity-%[1]s { ip saddr }\nmeta l4proto %[2]s dnat to %[3]s\n}\n", endpoint, sp.Key.Protocol, ep.Addr)
		fmt.Fprintf(&rules, "ip saddr @affinity-%[1]s goto %[1]s\n", endpoint)
		fmt.Fprintf(&choices, "%d : goto %s,\n", i, endpoint)
	}
	fmt.Fprintf(w, "chain %s {\n%snumgen random mod %d vmap {\n%s}\n}\n", name, rules.String(), len(sp.Endpoints), choices.String())
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// patience bounds one run of a program.
const patience = 5 * time.Minute

// once is what "veridict run --once -o json" prints.
type once struct {
	Services       int     `json:"services"`
	Elements       int     `json:"elements"`
	ProgramSeconds float64 `json:"programSeconds"`
	PeakRSSBytes   int64   `json:"peakRSSBytes"`
	Rejected       []any   `json:"rejected"`
}

// pair are the figures of both contenders over all rounds.
type pair struct {
	oursSeconds, nftSeconds []float64
	oursMiB, nftMiB         []float64
	oursWall                []float64
	elements                int
}

// coldStart compares the way from a state in memory to the programmed kernel
// with nft -f of the same tables as text.
func (b *bench) coldStart(ctx context.Context, r *report) error {
	o := b.options
	p, err := b.compare(ctx, o.services, o.endpoints)
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("cold start, %d Services x %d endpoints, %d elements", o.services, o.endpoints, p.elements)
	r.note(subject, "veridict, state in memory to programmed", median(p.oursSeconds), "s")
	r.note(subject, "veridict, whole process with reading the manifests", median(p.oursWall), "s")
	r.note(subject, "nft -f of the rendered text", median(p.nftSeconds), "s")
	r.atLeast(subject, "times faster than nft -f", ratio(p.nftSeconds, p.oursSeconds), "", 5)
	r.note(subject, "veridict, peak memory of the process", median(p.oursMiB), "MiB")
	r.note(subject, "nft -f, peak memory", median(p.nftMiB), "MiB")
	r.atMost(subject, "memory as a share of nft's", ratio(p.oursMiB, p.nftMiB), "", 0.333)
	return nil
}

// singleEndpoints is the cluster of the published figures of the single-map
// layout.
func (b *bench) singleEndpoints(ctx context.Context, r *report) error {
	p, err := b.compare(ctx, b.options.single, 1)
	if err != nil {
		return err
	}
	subject := fmt.Sprintf("cold start, %d Services x 1 endpoint, %d elements", b.options.single, p.elements)
	r.note(subject, "veridict, state in memory to programmed", median(p.oursSeconds), "s")
	r.note(subject, "nft -f of the rendered text", median(p.nftSeconds), "s")
	return nil
}

// ratio returns the median of a over b, round by round.
func ratio(a, b []float64) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	return median(ratios)
}

func (b *bench) compare(ctx context.Context, services, endpoints int) (*pair, error) {
	dir := filepath.Join(b.dir, fmt.Sprintf("manifests-%d-%d", services, endpoints))
	if err := writeManifests(dir, services, endpoints); err != nil {
		return nil, err
	}
	text := dir + ".nft"
	if err := b.render(ctx, dir, text); err != nil {
		return nil, err
	}
	p := &pair{}
	for round := range b.options.rounds {
		b.progress("cold start of %d x %d, round %d of %d", services, endpoints, round+1, b.options.rounds)
		if err := b.runOnce(ctx, dir, services, p); err != nil {
			return nil, err
		}
		if err := b.runNFT(ctx, text, p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (b *bench) render(ctx context.Context, dir, to string) error {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	cmd := exec.CommandContext(ctx, b.options.veridict, "render", "--manifests", dir)
	cmd.Stdout, cmd.Stderr = file, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("render: %w", err)
	}
	return file.Close()
}

func (b *bench) runOnce(ctx context.Context, dir string, services int, p *pair) error {
	var out bytes.Buffer
	cmd, cancel := alone(ctx, b.options.veridict, "run", "--manifests", dir, "--once", "-o", "json")
	defer cancel()
	cmd.Stdout = &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("veridict run --once: %w", err)
	}
	p.oursWall = append(p.oursWall, time.Since(start).Seconds())
	var result once
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		return fmt.Errorf("read what veridict run --once printed: %w", err)
	}
	if result.Services != services || len(result.Rejected) > 0 {
		return fmt.Errorf("veridict programmed %d of %d Services and rejected %v", result.Services, services, result.Rejected)
	}
	p.elements = result.Elements
	p.oursSeconds = append(p.oursSeconds, result.ProgramSeconds)
	p.oursMiB = append(p.oursMiB, float64(result.PeakRSSBytes)/(1<<20))
	return nil
}

func (b *bench) runNFT(ctx context.Context, text string, p *pair) error {
	cmd, cancel := alone(ctx, "nft", "-f", text)
	defer cancel()
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("nft -f: %w", err)
	}
	p.nftSeconds = append(p.nftSeconds, time.Since(start).Seconds())
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return fmt.Errorf("nft -f: no resource usage")
	}
	p.nftMiB = append(p.nftMiB, float64(usage.Maxrss)/1024)
	return nil
}

// alone prepares a program to run in an empty network namespace of its own.
func alone(ctx context.Context, name string, args ...string) (*exec.Cmd, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	return cmd, cancel
}

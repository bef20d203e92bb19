// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProbeNFT runs programs that call themselves nft.
func TestProbeNFT(t *testing.T) {
	tests := []struct {
		name, script string
		patience     time.Duration
		// want is in the error; empty for none.
		want []string
	}{
		{name: "works", script: `echo "nftables v1.0.6 (x)"`},
		{name: "too old", script: `echo "nftables v0.9.8 (x)"`, want: []string{"0.9.8 is too old", "install"}},
		{name: "crashes", script: `kill -SEGV $$`, want: []string{"nft --version", "segmentation fault", "install"}},
		{name: "fails", script: `echo "no such" >&2; echo library >&2; exit 3`, want: []string{"exit status 3: no such library: "}},
		{name: "hangs", script: `exec sleep 1000`, patience: time.Millisecond, want: []string{"does not answer"}},
		{name: "leaves a child", script: `sleep 3; exit`, patience: time.Millisecond, want: []string{"does not answer"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\n"+tc.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			patience := tc.patience
			if patience == 0 {
				patience = time.Minute
			}
			err := probeNFT(t.Context(), patience)
			if (err == nil) != (len(tc.want) == 0) {
				t.Fatalf("error: %v, want %q", err, tc.want)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error: %v, want one line with %q", err, want)
				}
			}
		})
	}
}

func TestProbeNFTIsNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := probeNFT(t.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), "apt-get install nftables") {
		t.Errorf("error: %v", err)
	}
}

func TestProbeNFTIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := probeNFT(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v, want that of the context", err)
	}
}

// TestNFTError: that nft was killed is what we did, not what went wrong.
func TestNFTError(t *testing.T) {
	killed := errors.New("signal: killed")
	late, cancelLate := context.WithTimeout(t.Context(), 0)
	defer cancelLate()
	<-late.Done()
	told, cancelTold := context.WithCancelCause(t.Context())
	cancelTold(errors.New("terminated"))
	for _, tc := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{t.Context(), killed, "run nft: signal: killed"},
		{late, killed, "run nft: it does not answer: context deadline exceeded"},
		{told, killed, "run nft: terminated"},
	} {
		if err := nftError(tc.ctx, tc.err); err == nil || err.Error() != tc.want {
			t.Errorf("error: %v, want %s", err, tc.want)
		}
	}
	if err := nftError(late, nil); err != nil {
		t.Errorf("error of a success: %v", err)
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeFiles are files in memory. Those that hold "ro:" cannot be written.
type fakeFiles map[string]string

func (f fakeFiles) Read(path string) (string, error) {
	text, ok := f[path]
	if !ok {
		return "", fmt.Errorf("open %s: %w", path, fs.ErrNotExist)
	}
	return strings.TrimPrefix(text, "ro:"), nil
}

func (f fakeFiles) Write(path, value string) error {
	if strings.HasPrefix(f[path], "ro:") {
		return syscall.EROFS
	}
	f[path] = value
	return nil
}

func TestConntrack(t *testing.T) {
	const established, closeWait = sysctlDir + "nf_conntrack_tcp_timeout_established", sysctlDir + "nf_conntrack_tcp_timeout_close_wait"
	const liberal, udp, stream = sysctlDir + "nf_conntrack_tcp_be_liberal", sysctlDir + "nf_conntrack_udp_timeout", sysctlDir + "nf_conntrack_udp_timeout_stream"
	kernel := func() fakeFiles {
		return fakeFiles{
			maxPath: "65536", hashSizePath: "16384", established: "432000", closeWait: "60", liberal: "0", udp: "30", stream: "120",
		}
	}
	defaults := Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}
	cases := []struct {
		name    string
		want    Conntrack
		cpus    int
		files   fakeFiles
		foreign bool
		changed fakeFiles
		// mentions stand in the error.
		mentions []string
	}{
		{name: "nothing asked for", files: kernel()},
		{
			name: "kube-proxy's defaults on two CPUs", want: defaults, cpus: 2, files: kernel(),
			changed: fakeFiles{maxPath: "131072", hashSizePath: "32768", established: "86400", closeWait: "3600"},
		},
		{
			name: "64 CPUs", want: defaults, cpus: 64, files: kernel(),
			changed: fakeFiles{maxPath: "1048576", hashSizePath: "262144", established: "86400", closeWait: "3600"},
		},
		{
			name: "a larger limit stays", want: Conntrack{MaxPerCore: 100}, cpus: 2, files: kernel(),
		},
		{
			name: "timeouts of UDP, and be liberal", want: Conntrack{UDP: 10 * time.Second, UDPStream: 1500 * time.Millisecond, TCPBeLiberal: true},
			files: kernel(), changed: fakeFiles{udp: "10", stream: "1", liberal: "1"},
		},
		{
			name: "another network namespace", want: defaults, cpus: 2, foreign: true, files: kernel(),
			changed: fakeFiles{established: "86400", closeWait: "3600"},
		},
		{
			name: "read-only, the rest is written", want: defaults, cpus: 2,
			files:    fakeFiles{maxPath: "ro:65536", hashSizePath: "16384", established: "ro:432000", closeWait: "60"},
			changed:  fakeFiles{hashSizePath: "32768", closeWait: "3600"},
			mentions: []string{maxPath, established, "writable", "--conntrack-"},
		},
		{
			name: "no module", want: Conntrack{TCPCloseWait: time.Hour}, files: fakeFiles{}, mentions: []string{closeWait, "nf_conntrack"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			want := maps.Clone(tc.files)
			maps.Copy(want, tc.changed)
			err := tc.want.Apply(tc.files, tc.cpus, !tc.foreign, slog.New(slog.DiscardHandler))
			if (err != nil) != (len(tc.mentions) > 0) {
				t.Errorf("error: %v", err)
			}
			for _, word := range tc.mentions {
				if err != nil && !strings.Contains(err.Error(), word) {
					t.Errorf("error %q does not mention %s", err, word)
				}
			}
			if diff := cmp.Diff(want, tc.files); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

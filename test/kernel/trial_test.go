// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// refusing is an nft that says what a kernel without nf_tables for some family
// says.
const refusing = `#!/bin/sh
case " $* " in *" - "*) ;; *) exec REAL "$@" ;; esac
# A virtual machine has no other program than the shell.
input=
while IFS= read -r line; do
	case "$line" in FAMILIES)
		echo "Error: Could not process rule: Operation not supported" >&2
		exit 1 ;;
	esac
	input="$input$line
"
done
REAL "$@" <<END
$input
END
`

// refuse puts an nft in front that refuses lines that match a pattern of the shell:
// those about tables of some families.
func refuse(t *testing.T, pattern string) {
	t.Helper()
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("REAL", real, "FAMILIES", pattern).Replace(refusing)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestKernelWithoutIPv6ServesIPv4(t *testing.T) {
	start(t)
	refuse(t, `*" ip6 "*`)
	v4, v6 := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("[fd00:10:96::1]:80")
	state := stateOf(dataplane.Settings{},
		port("web", v4, dataplane.TCP, netip.MustParseAddrPort("10.244.0.1:8080")),
		port("web6", v6, dataplane.TCP, netip.MustParseAddrPort("[fd00:10:244::1]:8080")))
	report := mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), state)
	if got := report.Programmed.ServicePorts; got != 1 {
		t.Errorf("%d ServicePorts are programmed, want the one of IPv4", got)
	}
	if len(report.Rejected) != 1 || report.Rejected[0].Key.Name != "web6" {
		t.Errorf("rejected: %v, want web6", report.Rejected)
	}
	if tables := list(t, "tables"); tables != "table ip veridict\n" {
		t.Errorf("tables:\n%s", tables)
	}
}

func TestKernelWithoutAnythingSaysSo(t *testing.T) {
	start(t)
	refuse(t, `*" ip "*|*" ip6 "*`)
	_, err := nftables.New(t.Context(), quiet(nftables.MarkFree))
	if err == nil || !strings.Contains(err.Error(), "has no nf_tables for") {
		t.Errorf("got error %v, want one that says what may be missing", err)
	}
}

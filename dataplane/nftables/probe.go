// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
)

// minNFT is the oldest nft that reads what is written here: typeof with
// concatenations of numgen. Older ones were not tried.
const minNFT = "1.0.1"

// probePatience is how long nft may take for next to nothing. Other users of
// nftables may hold the commit lock for long.
const probePatience = 30 * time.Second

// Probe says whether nftables can be programmed from here. The error is one line
// that names what is missing and what to do.
func Probe(ctx context.Context) error {
	if err := probeKernel(); err != nil {
		return err
	}
	return probeNFT(ctx, probePatience)
}

// probeNFT says whether there is an nft that works and is new enough. What it can
// do with this kernel is for trial to find out.
func probeNFT(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := runNFT(ctx, "--version")
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("the program nft is not installed: install nftables %s or newer (apt-get install nftables)", minNFT)
	}
	if err != nil {
		return err
	}
	return checkVersion(out)
}

// runNFT returns what nft prints. The error is one line and says which program
// failed, how, and what to do.
func runNFT(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nft", args...)
	// A child of nft may outlive it and keep the output open.
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err == nil || errors.Is(err, exec.ErrNotFound) {
		return string(out), err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	message := ""
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(exit.Stderr) > 0 {
		message = ": " + strings.Join(strings.Fields(string(exit.Stderr)), " ")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		message = ": it does not answer"
	}
	return "", fmt.Errorf("%s %s: %w%s: see that it works by hand, or install nftables again",
		cmd.Path, strings.Join(args, " "), err, message)
}

func probeKernel() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	_, err = conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPERM):
		return errors.New("not permitted to program nftables: run as root, or with the capability CAP_NET_ADMIN")
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT), errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("this kernel has no nf_tables (%w): load it with modprobe nf_tables, or use a kernel with CONFIG_NF_TABLES", err)
	default:
		return fmt.Errorf("list nftables tables: %w", err)
	}
}

// warnOfOthers tells of tables by which kube-proxy would translate the same
// connections.
func warnOfOthers(log *slog.Logger) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	for _, table := range tables {
		if table.Name == "kube-proxy" {
			log.Warn("kube-proxy's table is there: whoever comes first translates a connection; "+
				"stop kube-proxy on this node and run kube-proxy --cleanup", "table", table.Name)
			return nil
		}
	}
	return nil
}

// checkVersion reads "nftables v1.0.6 (Lester Gooch #5)".
func checkVersion(output string) error {
	found := regexp.MustCompile(`v(\d+)\.(\d+)(?:\.(\d+))?`).FindStringSubmatch(output)
	if found == nil {
		return fmt.Errorf("nft --version says %q, which is no version: install nftables %s or newer", output, minNFT)
	}
	number := 0
	for _, part := range found[1:] {
		n, _ := strconv.Atoi(part)
		number = 1000*number + n
	}
	if number < 1_000_001 {
		return fmt.Errorf("nft %s is too old: install nftables %s or newer", found[0][1:], minNFT)
	}
	return nil
}

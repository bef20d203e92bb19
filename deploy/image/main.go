// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	binary, archive, name string
	epoch                 time.Time
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/veridict", "the program, static")
	flag.StringVar(&o.archive, "o", "bin/veridict-image.tar", "the OCI archive; the SBOM is beside it, with .spdx.json instead of .tar")
	flag.StringVar(&o.name, "name", "docker.io/library/veridict:dev", "name and tag of the image")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// buildTimeout is for a slow mirror.
const buildTimeout = 10 * time.Minute

func run(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	seconds, err := strconv.ParseInt(orZero(os.Getenv("SOURCE_DATE_EPOCH")), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	o.epoch = time.Unix(seconds, 0).UTC()
	work, err := os.MkdirTemp("", "veridict-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	tree, used, err := files(ctx, work)
	if err != nil {
		return err
	}
	if err := checkStatic(o.binary); err != nil {
		return err
	}
	sbom, err := newSBOM(o, used)
	if err != nil {
		return err
	}
	sbomPath := strings.TrimSuffix(o.archive, ".tar") + ".spdx.json"
	if err := os.WriteFile(sbomPath, sbom, 0o644); err != nil {
		return err
	}
	digest, err := write(o, work, tree, sbom)
	if err != nil {
		return err
	}
	info, err := os.Stat(o.archive)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "%s  %s  %s for linux/%s, %.1f MiB, %d Debian packages, %s\n",
		digest, o.archive, o.name, runtime.GOARCH, float64(info.Size())/(1<<20), len(used), sbomPath)
	return nil
}

// files are those of the image that are not the binary, by name, and the packages that
// they are of.
func files(ctx context.Context, work string) ([]entry, []debianPackage, error) {
	packages, err := fetch(ctx, work, "nftables")
	if err != nil {
		return nil, nil, err
	}
	tree, used, err := closure(filepath.Join(work, "root"), "/usr/sbin/nft", packages)
	if err != nil {
		return nil, nil, err
	}
	authorities, p, err := certificates(ctx, work)
	if err != nil {
		return nil, nil, err
	}
	users, err := userFiles(work)
	if err != nil {
		return nil, nil, err
	}
	tree, used = slices.Concat(tree, authorities, users), append(used, p)
	slices.SortFunc(tree, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(used, func(a, b debianPackage) int { return strings.Compare(a.Name, b.Name) })
	return tree, used, nil
}

func orZero(text string) string {
	if text == "" {
		return "0"
	}
	return text
}

var errNotStatic = errors.New("the program needs libraries of its own; make build makes it without")

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const sbomName = "/usr/share/sbom/veridict.spdx.json"

// write makes the archive and returns the digest of the image.
func write(o options, work string, tree []entry, sbom []byte) (string, error) {
	base, err := layer(o, tree, nil)
	if err != nil {
		return "", err
	}
	// In a layer of its own: it changes more often than Debian's packages.
	program, err := layer(o, []entry{{name: "/veridict", source: o.binary, mode: 0o755}}, sbom)
	if err != nil {
		return "", err
	}
	image := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	if image, err = mutate.AppendLayers(image, base, program); err != nil {
		return "", err
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, Created: v1.Time{Time: o.epoch},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(base, program)},
		Config: v1.Config{
			Entrypoint: []string{"/veridict"}, Cmd: []string{"run"}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			Labels: map[string]string{
				"org.opencontainers.image.title": "veridict", "org.opencontainers.image.licenses": "Apache-2.0",
				"org.opencontainers.image.description": "Kubernetes Service proxy with a constant number of nftables chains and maps",
			},
		},
	})
	if err != nil {
		return "", err
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(work, "layout")
	target, err := layout.Write(dir, empty.Index)
	if err != nil {
		return "", err
	}
	_, tag, _ := strings.Cut(o.name, ":")
	err = target.AppendImage(image, layout.WithAnnotations(map[string]string{
		// containerd and kind read the first, podman and docker the second.
		"io.containerd.image.name": o.name, "org.opencontainers.image.ref.name": tag,
	}), layout.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return "", err
	}
	return digest.String(), archive(o, dir)
}

func diffIDs(layers ...v1.Layer) []v1.Hash {
	var ids []v1.Hash
	for _, l := range layers {
		// It was computed before, or the layer would not be in the image.
		if id, err := l.DiffID(); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// layer packs files, and the SBOM if there is one.
func layer(o options, tree []entry, sbom []byte) (v1.Layer, error) {
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	dirs := map[string]bool{}
	for _, e := range tree {
		if err := o.add(out, dirs, e); err != nil {
			return nil, fmt.Errorf("pack %s: %w", e.name, err)
		}
	}
	if sbom != nil {
		if err := o.parents(out, dirs, sbomName); err != nil {
			return nil, err
		}
		if err := o.put(out, tar.Header{Name: sbomName[1:], Mode: 0o644, Size: int64(len(sbom))}, bytes.NewReader(sbom)); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	content := buffer.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
}

func (o options) add(out *tar.Writer, dirs map[string]bool, e entry) error {
	if err := o.parents(out, dirs, e.name); err != nil {
		return err
	}
	header := tar.Header{Name: e.name[1:], Mode: int64(e.mode)}
	if e.link != "" {
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		return o.put(out, header, nil)
	}
	file, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	header.Size = info.Size()
	return o.put(out, header, file)
}

// parents makes the directories that a path is in, each once.
func (o options) parents(out *tar.Writer, dirs map[string]bool, name string) error {
	dir := path.Dir(name)
	if dir == "/" || dirs[dir] {
		return nil
	}
	if err := o.parents(out, dirs, dir); err != nil {
		return err
	}
	dirs[dir] = true
	return o.put(out, tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755}, nil)
}

func (o options) put(out *tar.Writer, header tar.Header, content io.Reader) error {
	if header.Typeflag == 0 {
		header.Typeflag = tar.TypeReg
	}
	header.ModTime, header.Format = o.epoch, tar.FormatPAX
	if err := out.WriteHeader(&header); err != nil {
		return err
	}
	if content == nil {
		return nil
	}
	_, err := io.Copy(out, content)
	return err
}

// archive packs the layout.
func archive(o options, dir string) (err error) {
	var tree []entry
	walkErr := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			tree = append(tree, entry{name: strings.TrimPrefix(name, dir), source: name, mode: 0o644})
		}
		return err
	})
	if walkErr != nil {
		return walkErr
	}
	slices.SortFunc(tree, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	file, err := os.Create(o.archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out := tar.NewWriter(file)
	dirs := map[string]bool{}
	for _, e := range tree {
		if err := o.add(out, dirs, e); err != nil {
			return fmt.Errorf("pack %s: %w", e.name, err)
		}
	}
	return out.Close()
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const repository = "../.."

// rootFS is the file system of the image that "make image" has made, unpacked once for
// all tests. It is made before them: Debian's packages cannot be reached from here.
var rootFS = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/run", "veridict")
	if err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	if err := unpackImage(filepath.Join(repository, "bin/veridict-image.tar"), filepath.Join(dir, "layout"), root); err != nil {
		return "", fmt.Errorf("%w (make image makes it)", err)
	}
	return root, nil
})

func unpackImage(archive, scratch, root string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := untar(file, scratch); err != nil {
		return err
	}
	path, err := layout.FromPath(scratch)
	if err != nil {
		return err
	}
	index, err := path.ImageIndex()
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("%d images in %s", len(manifest.Manifests), archive)
	}
	image, err := path.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	content := mutate.Extract(image)
	defer content.Close()
	return untar(content, root)
}

func untar(in io.Reader, dir string) error {
	reader := tar.NewReader(in)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Join(dir, header.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(header.Linkname, name)
		default:
			var file *os.File
			if file, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY, os.FileMode(header.Mode)); err == nil {
				_, err = io.Copy(file, reader)
				err = errors.Join(err, file.Close())
			}
		}
		if err != nil {
			return err
		}
	}
}

// daemonSet decodes a manifest strictly.
func daemonSet(t *testing.T, path string) *appsv1.DaemonSet {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	var ds appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &ds); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return &ds
}

// The parts of an OCI runtime configuration that are needed.
type (
	ociConfig struct {
		Version string     `json:"ociVersion"`
		Process ociProcess `json:"process"`
		Root    ociRoot    `json:"root"`
		Mounts  []ociMount `json:"mounts"`
		Linux   ociLinux   `json:"linux"`
	}
	ociProcess struct {
		Args            []string            `json:"args"`
		Env             []string            `json:"env"`
		Cwd             string              `json:"cwd"`
		Capabilities    map[string][]string `json:"capabilities"`
		NoNewPrivileges bool                `json:"noNewPrivileges"`
	}
	ociRoot struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	ociMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options"`
	}
	ociNamespace struct {
		Type string `json:"type"`
		Path string `json:"path,omitempty"`
	}
	ociLinux struct {
		Namespaces        []ociNamespace `json:"namespaces"`
		ReadonlyPaths     []string       `json:"readonlyPaths,omitempty"`
		RootfsPropagation string         `json:"rootfsPropagation,omitempty"`
	}
)

// host says what stands for the host's paths and for the ConfigMap, by the name of the
// volume.
type host map[string]string

// runtimeConfig makes of a container what the kubelet and containerd would, in the network
// namespace of this process.
func runtimeConfig(t *testing.T, root string, c *v1.Container, volumes host, extra ...string) ociConfig {
	t.Helper()
	args := []string{"/veridict"}
	for _, arg := range append(slices.Clone(c.Args), extra...) {
		args = append(args, strings.ReplaceAll(arg, "$(NODE_NAME)", "node"))
	}
	config := ociConfig{
		Version: "1.0.2", Root: ociRoot{Path: root, Readonly: *c.SecurityContext.ReadOnlyRootFilesystem},
		Process: ociProcess{Args: args, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Cwd: "/"},
		Mounts: []ociMount{
			{"/proc", "proc", "proc", []string{"nosuid", "noexec", "nodev"}},
			{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "ro"}},
			{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
		},
	}
	for _, kind := range []string{"pid", "mount", "ipc", "uts"} {
		config.Linux.Namespaces = append(config.Linux.Namespaces, ociNamespace{Type: kind})
	}
	config.Linux.Namespaces = append(config.Linux.Namespaces, ociNamespace{Type: "network", Path: fmt.Sprintf("/proc/%d/ns/net", os.Getpid())})
	var names []string
	if privileged := c.SecurityContext.Privileged; privileged != nil && *privileged {
		names = everyCapability()
	} else {
		if drop := c.SecurityContext.Capabilities.Drop; !slices.Equal(drop, []v1.Capability{"ALL"}) {
			t.Fatalf("container %s drops %v", c.Name, drop)
		}
		for _, capability := range c.SecurityContext.Capabilities.Add {
			names = append(names, "CAP_"+string(capability))
		}
		config.Process.NoNewPrivileges = !*c.SecurityContext.AllowPrivilegeEscalation
		config.Linux.ReadonlyPaths = []string{"/proc/sys"}
	}
	config.Process.Capabilities = map[string][]string{"bounding": names, "effective": names, "permitted": names}
	for _, mount := range c.VolumeMounts {
		source, ok := volumes[mount.Name]
		if !ok {
			t.Fatalf("container %s mounts %s, which this test does not have", c.Name, mount.Name)
		}
		options := []string{"rbind", "rw"}
		if mount.ReadOnly {
			options[1] = "ro"
		}
		if mode := propagation(t, mount); mode != "" {
			options, config.Linux.RootfsPropagation = append(options, mode), mode
		}
		config.Mounts = append(config.Mounts, ociMount{mount.MountPath, "bind", source, options})
	}
	return config
}

// propagation is what containerd makes of a mount's.
func propagation(t *testing.T, mount v1.VolumeMount) string {
	t.Helper()
	if mount.MountPropagation == nil {
		return ""
	}
	switch *mount.MountPropagation {
	case v1.MountPropagationNone:
		return ""
	case v1.MountPropagationHostToContainer:
		return "rslave"
	case v1.MountPropagationBidirectional:
		return "rshared"
	}
	t.Fatalf("mount %s has the propagation %s", mount.Name, *mount.MountPropagation)
	return ""
}

// everyCapability are those of this process.
func everyCapability() []string {
	out, err := exec.Command("capsh", "--print").Output()
	if err != nil {
		// Those that matter here.
		return []string{"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"}
	}
	for line := range strings.Lines(string(out)) {
		if list, ok := strings.CutPrefix(line, "Bounding set ="); ok {
			return strings.Split(strings.ToUpper(strings.TrimSpace(list)), ",")
		}
	}
	return nil
}

// container is a running one.
type container struct {
	t     *testing.T
	name  string
	root  string
	log   string
	cmd   *exec.Cmd
	ended chan error
}

// crun needs a file system of cgroup2 and no other at /sys/fs/cgroup; it gets one in a
// mount namespace of its own. All mounts of this process are private but those that a
// test shares with the container.
const crun = `umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && exec crun --root "$0" --cgroup-manager=disabled run -b "$1" "$2"`

// runContainer starts a container; cleanup ends it.
func runContainer(t *testing.T, name string, config ociConfig) *container {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &container{t: t, name: name, root: filepath.Join(dir, "crun"), log: filepath.Join(dir, "log"), ended: make(chan error, 1)}
	log, err := os.Create(c.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", crun, c.root, dir, name)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.ended <- c.cmd.Wait() }()
	t.Cleanup(func() {
		if c.ended != nil {
			_ = c.cmd.Process.Signal(unix.SIGKILL)
			t.Logf("killed %s: %v", name, <-c.ended)
			_ = exec.Command("crun", "--root", c.root, "--cgroup-manager=disabled", "delete", "--force", name).Run()
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, c.output())
		}
	})
	return c
}

func (c *container) output() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// wait returns the error of the container's process.
func (c *container) wait() error {
	err := <-c.ended
	c.ended = nil
	return err
}

// terminate asks the process to end, as the kubelet does. crun passes the signal on.
func (c *container) terminate() error {
	if err := c.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	return c.wait()
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane/runner/runnertest"
)

func serviceYAML(name, ip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: ns}\n"+
		"spec: {clusterIP: %s, ports: [{port: 80}]}\n", name, ip)
}

// folder is a directory with a source on it that is looked at step by step.
type folder struct {
	t     *testing.T
	path  string
	dir   *Dir
	clock *runnertest.Clock
	log   *bytes.Buffer
	// served is what a handler would hold now.
	served map[string]string
}

func newFolder(t *testing.T) *folder {
	f := &folder{t: t, path: filepath.Join(t.TempDir(), "manifests"), log: &bytes.Buffer{}, clock: runnertest.NewClock(),
		served: map[string]string{}}
	// Files are long settled at this time.
	f.clock.Advance(time.Since(f.clock.Now()) + time.Hour)
	f.dir = NewDir(Options{
		Dir: f.path, NodeName: "me", Logger: slog.New(slog.NewTextHandler(f.log, nil)), Clock: f.clock,
	})
	f.must(os.Mkdir(f.path, 0o755))
	return f
}

func (f *folder) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) write(name, text string) {
	f.t.Helper()
	f.must(os.WriteFile(filepath.Join(f.path, name), []byte(text), 0o600))
}

func (f *folder) remove(name string) {
	f.t.Helper()
	f.must(os.Remove(filepath.Join(f.path, name)))
}

// look scans everything and returns the changes as text.
func (f *folder) look() []string {
	f.t.Helper()
	changes, err := f.dir.scan(f.t.Context())
	f.must(err)
	var lines []string
	for _, change := range changes {
		ip := ""
		if s, ok := change.Object.(*convert.Service); ok {
			ip = s.IPv4.String()
		}
		lines = append(lines, strings.TrimSpace(change.Key.String()+" "+ip))
		if change.Object == nil {
			delete(f.served, change.Key.Name.Name)
		} else {
			f.served[change.Key.Name.Name] = ip
		}
	}
	return lines
}

func (f *folder) problems() string {
	var lines []string
	for _, p := range f.dir.problems() {
		lines = append(lines, strings.ReplaceAll(p.String(), f.path+"/", ""))
	}
	return strings.Join(lines, "\n")
}

func (f *folder) expect(what string, changes []string, served map[string]string, problems string) {
	f.t.Helper()
	if diff := cmp.Diff(changes, f.look()); diff != "" {
		f.t.Errorf("%s: changes (-want +got):\n%s", what, diff)
	}
	if diff := cmp.Diff(served, f.served); diff != "" {
		f.t.Errorf("%s: served (-want +got):\n%s", what, diff)
	}
	if diff := cmp.Diff(problems, f.problems()); diff != "" {
		f.t.Errorf("%s: problems (-want +got):\n%s", what, diff)
	}
}

func TestFollowFiles(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("a.yaml", serviceYAML("a", "172.30.0.1")+"---\n"+serviceYAML("b", "172.30.0.2"))
	f.write("c.json", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"c","namespace":"ns"},"spec":{"clusterIP":"172.30.0.3","ports":[{"port":80}]}}`)
	for _, name := range []string{".hidden.yaml", "a.yaml~", ".a.yaml.swp", "#a.yaml#", "a.yaml.tmp", "notes.txt", "a.yaml.bak"} {
		f.write(name, serviceYAML("wrong", "172.30.0.66"))
	}
	f.must(os.Mkdir(filepath.Join(f.path, "dir.yaml"), 0o755))
	abc := map[string]string{"a": "172.30.0.1", "b": "172.30.0.2", "c": "172.30.0.3"}
	f.expect("start", []string{"Service ns/a 172.30.0.1", "Service ns/b 172.30.0.2", "Service ns/c 172.30.0.3"}, abc, "")
	f.expect("nothing new", nil, abc, "")

	f.write("a.yaml", serviceYAML("a", "172.30.0.1")+"---\n"+serviceYAML("b", "172.30.0.22"))
	abc["b"] = "172.30.0.22"
	f.expect("only what changed", []string{"Service ns/b 172.30.0.22"}, abc, "")

	f.remove("c.json")
	delete(abc, "c")
	f.expect("file removed", []string{"Service ns/c"}, abc, "")

	f.write("a.yaml", "---\n")
	f.expect("file without objects", []string{"Service ns/a", "Service ns/b"}, map[string]string{}, "")
}

func TestBrokenFileKeepsItsObjects(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	a, b := serviceYAML("a", "172.30.0.1"), serviceYAML("b", "172.30.0.2")
	f.write("a.yaml", a+"---\n"+b)
	ab := map[string]string{"a": "172.30.0.1", "b": "172.30.0.2"}
	f.expect("start", []string{"Service ns/a 172.30.0.1", "Service ns/b 172.30.0.2"}, ab, "")

	f.write("a.yaml", a+"---\napiVersion: v1\nkind: Serv\n  ice: [")
	f.expect("half written", nil, ab, "a.yaml: document 2 (from line 6): cannot be parsed: yaml: line 3: mapping values are not allowed in this context")

	f.write("a.yaml", a+"---\n"+strings.Replace(b, "[{port: 80}]", "[{port: eighty}]", 1))
	f.expect("a field of the wrong type", nil, ab, "a.yaml: Service ns/b: spec.ports.port: want a whole number of at most 32 bits, not string")

	f.write("a.yaml", a+"---\n"+strings.Replace(b, "172.30.0.2", "172.30.0.256", 1))
	f.expect("an address that is none", nil, ab, `a.yaml: Service ns/b: spec.clusterIP: "172.30.0.256" is not an IP address`)

	f.write("a.yaml", a+"---\napiVersion: v1\n")
	f.expect("cut at the end of a line", nil, ab, "a.yaml: document 2 (from line 6): the object has no kind")

	f.write("a.yaml", a+"---\n"+b[:strings.Index(b, "spec")])
	f.expect("cut before the spec", nil, ab,
		"a.yaml: Service ns/b: spec.clusterIP: there is none, and nobody who allocates one: write down an address, or None for a headless Service\n"+
			"a.yaml: Service ns/b: spec.ports: there is none, so that nothing can be served")

	f.write("a.yaml", b)
	f.expect("repaired", []string{"Service ns/a"}, map[string]string{"b": "172.30.0.2"}, "")
}

func TestBrokenDocumentDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("a.yaml", serviceYAML("a", "172.30.0.1")+"---\n{\"kind\": \n---\nkind: [\n---\n"+serviceYAML("b", "172.30.0.2"))
	f.expect("start", []string{"Service ns/a 172.30.0.1", "Service ns/b 172.30.0.2"},
		map[string]string{"a": "172.30.0.1", "b": "172.30.0.2"},
		"a.yaml: document 2 (from line 6): cannot be parsed: unexpected EOF\n"+
			"a.yaml: document 3 (from line 8): cannot be parsed: yaml: line 1: did not find expected node content")
}

func TestEmptiedFileIsNotBelievedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("a.yaml", serviceYAML("a", "172.30.0.1"))
	f.look()
	a := map[string]string{"a": "172.30.0.1"}
	f.write("a.yaml", "")
	info, err := os.Stat(filepath.Join(f.path, "a.yaml"))
	f.must(err)
	f.clock.Advance(info.ModTime().Sub(f.clock.Now()))
	f.expect("just emptied", nil, a, "")
	f.clock.Advance(settle)
	f.expect("still empty", []string{"Service ns/a"}, map[string]string{}, "")
}

func TestSameObjectInTwoFiles(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("b.yaml", serviceYAML("x", "172.30.0.2"))
	f.expect("one file", []string{"Service ns/x 172.30.0.2"}, map[string]string{"x": "172.30.0.2"}, "")

	f.write("a.yaml", serviceYAML("x", "172.30.0.1"))
	f.write("c.yaml", serviceYAML("x", "172.30.0.3"))
	f.expect("the first file wins", []string{"Service ns/x 172.30.0.1"}, map[string]string{"x": "172.30.0.1"},
		"b.yaml: Service ns/x: the object is in a.yaml, too, and taken from there\n"+
			"c.yaml: Service ns/x: the object is in a.yaml, too, and taken from there")

	f.remove("a.yaml")
	f.expect("the next takes over", []string{"Service ns/x 172.30.0.2"}, map[string]string{"x": "172.30.0.2"},
		"c.yaml: Service ns/x: the object is in b.yaml, too, and taken from there")

	f.write("c.yaml", "---\n"+serviceYAML("x", "172.30.0.33"))
	f.expect("a change in the shadow", nil, map[string]string{"x": "172.30.0.2"},
		"c.yaml: Service ns/x: the object is in b.yaml, too, and taken from there")

	f.write("b.yaml", serviceYAML("z", "172.30.0.4"))
	f.expect("the last one", []string{"Service ns/x 172.30.0.33", "Service ns/z 172.30.0.4"},
		map[string]string{"x": "172.30.0.33", "z": "172.30.0.4"}, "")

	f.write("b.yaml", serviceYAML("z", "172.30.0.4")+"---\n"+serviceYAML("z", "172.30.0.5"))
	f.expect("twice in one file", nil, map[string]string{"x": "172.30.0.33", "z": "172.30.0.4"},
		"b.yaml: Service ns/z: the object is in the file more than once; the first is used")
}

func TestVanishedDirectoryChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("a.yaml", serviceYAML("a", "172.30.0.1"))
	f.look()
	a := map[string]string{"a": "172.30.0.1"}
	f.must(os.RemoveAll(f.path))
	gone := f.path + ": waiting for the directory, nothing is changed until it is there: no such file or directory"
	f.expect("gone", nil, a, gone)
	changes, err := f.dir.scanNamed(t.Context(), []string{"a.yaml"})
	if err != nil || len(changes) != 0 {
		t.Errorf("event for a file of a directory that is gone: %v, %v", changes, err)
	}
	f.must(os.Mkdir(f.path, 0o755))
	f.write("a.yaml", serviceYAML("a", "172.30.0.1"))
	f.expect("back with the same", nil, a, "")
}

func TestConfigMapMount(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	version := func(name, ip string) {
		f.must(os.Mkdir(filepath.Join(f.path, name), 0o755))
		f.write(name+"/a.yaml", serviceYAML("a", ip))
	}
	version("..1", "172.30.0.1")
	f.must(os.Symlink("..1", filepath.Join(f.path, "..data")))
	f.must(os.Symlink("..data/a.yaml", filepath.Join(f.path, "a.yaml")))
	f.expect("mounted", []string{"Service ns/a 172.30.0.1"}, map[string]string{"a": "172.30.0.1"}, "")
	version("..2", "172.30.0.2")
	f.must(os.Symlink("..2", filepath.Join(f.path, "..new")))
	f.must(os.Rename(filepath.Join(f.path, "..new"), filepath.Join(f.path, "..data")))
	f.expect("swapped", []string{"Service ns/a 172.30.0.2"}, map[string]string{"a": "172.30.0.2"}, "")
	f.must(os.Remove(filepath.Join(f.path, "..data")))
	f.expect("in mid-change", nil, map[string]string{"a": "172.30.0.2"},
		"a.yaml: cannot be read, what was read before is kept: no such file or directory")
}

func TestUnknownKindsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	text := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: apps/v1\nkind: Deployment\n" +
		"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ns}\n"
	f.write("a.yaml", text)
	f.expect("start", nil, map[string]string{}, "")
	f.write("a.yaml", text+"---\n")
	f.expect("again", nil, map[string]string{}, "")
	if n := strings.Count(f.log.String(), `kind="apps/v1 Deployment"`); n != 1 || strings.Contains(f.log.String(), "Namespace") {
		t.Errorf("log:\n%s", f.log)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("a.yaml", serviceYAML("a", "nonsense"))
	var got []Batch
	f.must(f.dir.Load(t.Context(), func(b Batch) { got = append(got, b) }))
	if len(got) != 1 || !got[0].Synced || len(got[0].Changes) != 1 {
		t.Fatalf("batches: %+v", got)
	}
	want := filepath.Join(f.path, "a.yaml") + `: Service ns/a: spec.clusterIP: "nonsense" is not an IP address`
	if len(got[0].Problems) != 1 || got[0].Problems[0].String() != want {
		t.Errorf("problems: %v, want %s", got[0].Problems, want)
	}
	f.must(os.RemoveAll(f.path))
	if err := f.dir.Load(t.Context(), func(Batch) { t.Error("a batch of a directory that is not there") }); err == nil {
		t.Error("no error without a directory")
	}
}

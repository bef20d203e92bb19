// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/veridict/veridict/control/convert"
)

func anyObjects(t *rapid.T) []convert.Object {
	var objects []convert.Object
	for _, name := range []string{"x", "y", "z"} {
		if rapid.Bool().Draw(t, "has "+name) {
			objects = append(objects, &convert.Service{
				Name: convert.Name{Namespace: "ns", Name: name}, Created: rapid.Int64Range(1, 3).Draw(t, "version"),
			})
		}
	}
	return objects
}

func line(key convert.Key, object convert.Object, origin string) string {
	if object == nil {
		return ""
	}
	return fmt.Sprintf("%s version %d of %s", key, object.(*convert.Service).Created, origin)
}

// TestRandomFiles says that whatever files come, change and go, the changes
// lead to each object as the first file has it, and the others are reported.
func TestRandomFiles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex()
		served := map[convert.Key]string{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "file")
			f := x.files[name]
			if f == nil {
				f = &file{name: name, path: name}
				x.files[name] = f
			}
			objects := anyObjects(t)
			if len(objects) == 0 {
				delete(x.files, name)
			}
			for _, change := range x.replace(f, objects) {
				served[change.Key] = line(change.Key, change.Object, change.Origin)
				if change.Object == nil {
					delete(served, change.Key)
				}
			}
			want, shadowed := map[convert.Key]string{}, []string(nil)
			for _, name := range slices.Sorted(maps.Keys(x.files)) {
				for _, object := range x.files[name].objects {
					if _, taken := want[object.Key()]; taken {
						shadowed = append(shadowed, name+" "+object.Key().String())
						continue
					}
					want[object.Key()] = line(object.Key(), object, name)
				}
			}
			if diff := cmp.Diff(want, served); diff != "" {
				t.Fatalf("served (-want +got):\n%s", diff)
			}
			var reported []string
			for _, p := range x.problems() {
				reported = append(reported, p.File+" "+p.Object)
			}
			slices.SortFunc(shadowed, strings.Compare)
			if diff := cmp.Diff(shadowed, reported); diff != "" {
				t.Fatalf("reported (-want +got):\n%s", diff)
			}
		}
	})
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const spec = `"spec":{"clusterIP":"172.30.0.1","ports":[{"port":80}]}`
	service := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":"ns"},%s}`, name, spec)
	}
	bare := func(name string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"ns"},%s}`, name, spec)
	}
	long := `{"x":"` + strings.Repeat("x", 200<<10) + `","apiVersion":"v1","kind":"Service","metadata":{"name":"long","namespace":"ns"},` + spec + `}`
	tests := []struct {
		name, text string
		want       string
		problems   string
	}{
		{"empty", "", "", ""},
		{"only separators and comments", "---\n# nothing\n---\n\n---", "", ""},
		{"concatenated JSON", service("a") + service("b") + "\n" + service("c"), "a b c", ""},
		{"separated JSON", service("a") + "\n---\n" + service("b") + "\r\n--- # comment\r\n" + service("c"), "a b c", ""},
		{"object on the line of the separator", "--- " + service("a") + "\n--- " + service("b"), "a b", ""},
		{"JSON and YAML", service("a") + "\n---\n" + serviceYAML("b", "172.30.0.1"), "a b", ""},
		{"indented YAML", "  apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec: {clusterIP: None}\n", "a", ""},
		{"a List with its kind last", `{"apiVersion":"v1","items":[` + service("a") + "," + service("b") + `],"kind":"List"}`, "a b", ""},
		{"a typed list", `{"kind":"ServiceList","apiVersion":"v1","items":[` + bare("a") + "," + bare("b") + `]}`, "a b", ""},
		{"a typed list with its kind last", `{"items":[` + bare("a") + `],"kind":"ServiceList","apiVersion":"v1"}`, "a", ""},
		{"an empty List", `{"kind":"List","apiVersion":"v1","items":null}`, "", ""},
		{"a YAML List", "kind: List\napiVersion: v1\nitems:\n- " + service("a") + "\n- " + service("b"), "a b", ""},
		{"an object longer than any buffer", long + "\n---\n" + service("b"), "long b", ""},
		{"a separator within a string", `{"x":"a\n---\nb"}` + service("a"), "a", "document 1 (from line 1): the object has no kind"},
		{"JSON cut off", service("a") + `{"kind":"Service","meta`, "a", "document 1 (from line 1): cannot be parsed: unexpected EOF"},
		{"a List cut off", `{"kind":"List","items":[` + service("a") + `,{"ki`, "a", "document 1 (from line 1): cannot be parsed: unexpected EOF"},
		{"a List of something else", `{"kind":"List","items":[5]}`, "", "document 1 (from line 1): want an object, not number"},
		{"a Service without address and ports", "apiVersion: v1\nkind: Service\nmetadata: {name: a}", "a",
			"Service default/a: spec.clusterIP: there is none, and nobody who allocates one: write down an address, or None for a headless Service\n" +
				"Service default/a: spec.ports: there is none, so that nothing can be served"},
		{"a name without address", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: ExternalName, externalName: b}", "a", ""},
		{"a Service of another proxy", "apiVersion: v1\nkind: Service\nmetadata: {name: a, labels: {service.kubernetes.io/service-proxy-name: b}}", "a", ""},
		{"not an object", "- a\n- b", "", "document 1 (from line 1): cannot be parsed: a document must be an object with apiVersion and kind"},
		{"a key twice", "kind: Service\nkind: Node", "",
			`document 1 (from line 1): cannot be parsed: yaml: unmarshal errors:   line 2: key "kind" already set in map`},
		{"no name", `{"apiVersion":"v1","kind":"Service","metadata":{}}`, "", "Service in document 1 (from line 1): metadata.name: the object has no name"},
		{"a name for a ruleset", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a\";flush ruleset"}}`, "",
			`Service in document 1 (from line 1): metadata.name: "a\";flush ruleset" is not a name`},
		{"a bad namespace", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"A_B"}}`, "",
			`Service in document 1 (from line 1): metadata.namespace: "A_B" is not a name`},
		{"the second document has the line", "---\n# hello\n---\nkind: [", "", "document 1 (from line 4): cannot be parsed: yaml: line 1: did not find expected node content"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(iotest.OneByteReader(strings.NewReader(test.text)), "me")
			if err != nil {
				t.Fatal(err)
			}
			var names, problems []string
			for _, object := range got.objects {
				names = append(names, object.Key().Name.Name)
			}
			for _, problem := range got.problems {
				problems = append(problems, problem.String())
			}
			if diff := cmp.Diff(test.want, strings.Join(names, " ")); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			all := strings.Join(problems, "\n")
			if !strings.HasPrefix(all, test.problems) || test.problems == "" && all != "" {
				t.Errorf("problems: %s\nwant: %s", all, test.problems)
			}
		})
	}
}

func TestParseStreamError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"kind":"Ser`, "kind: Serv", ""} {
		_, err := parse(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(text+" "))), "me")
		if err == nil {
			t.Errorf("no error for a stream that fails after %q", text)
		}
	}
}

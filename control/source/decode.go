// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/veridict/veridict/control/convert"
)

// head is what tells one object from another.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

// object decodes and converts one object. An item of a typed list may leave its
// kind to the list.
func (p *parser) object(raw []byte, listKind string) {
	var h head
	if err := json.Unmarshal(raw, &h); err != nil {
		// It may be any of the objects that were in the file before.
		p.broken = true
		p.decodeFails(p.place(), err)
		return
	}
	if h.Kind == "" {
		h.Kind = listKind
	}
	if h.Kind == "" {
		p.broken = true
		p.problem("", "", "the object has no kind")
		return
	}
	// Items of a typed list leave out the version, too.
	decode, known := p.decoderOf(h)
	if !known {
		p.ignore(strings.TrimSpace(h.APIVersion + " " + h.Kind))
		return
	}
	if decode == nil {
		return
	}
	key := h.key()
	if field, message := badName(key); message != "" {
		p.broken = true
		p.problem(h.Kind+" in "+p.place(), field, "%s", message)
		return
	}
	object, problems, err := decode(raw)
	if err != nil {
		if p.unreadable == nil {
			p.unreadable = map[convert.Key]bool{}
		}
		p.unreadable[key] = true
		p.decodeFails(key.String(), err)
		return
	}
	p.objects = append(p.objects, object)
	p.problems = append(p.problems, problems...)
	if len(problems) > 0 {
		if p.mistakes == nil {
			p.mistakes = map[convert.Key][]convert.Problem{}
		}
		p.mistakes[key] = problems
	}
}

// decoderOf returns how to decode an object, nil for one that needs no
// decoding.
func (p *parser) decoderOf(h head) (decode func([]byte) (convert.Object, []convert.Problem, error), known bool) {
	core := h.APIVersion == "v1" || h.APIVersion == ""
	switch {
	case core && h.Kind == "Service":
		return decodeService, true
	case core && h.Kind == "Node":
		return decodeNode, true
	case core && (h.Kind == "Namespace" || h.Kind == "List"):
		return nil, true
	case h.Kind == "EndpointSlice" && (h.APIVersion == discoveryv1.SchemeGroupVersion.String() || h.APIVersion == ""):
		return p.decodeSlice, true
	case h.Kind == "ServiceCIDR" && (h.APIVersion == networkingv1.SchemeGroupVersion.String() || h.APIVersion == ""):
		return decodeServiceCIDR, true
	default:
		return nil, false
	}
}

func decodeService(raw []byte) (convert.Object, []convert.Problem, error) {
	var in v1.Service
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, nil, err
	}
	out, problems := convert.FromService(&in)
	return out, append(problems, incomplete(&in, out.Key())...), nil
}

// incomplete reports what an API server would have filled in or insisted on.
func incomplete(in *v1.Service, key convert.Key) (problems []convert.Problem) {
	if _, other := in.Labels[convert.LabelServiceProxyName]; other || in.Spec.Type == v1.ServiceTypeExternalName {
		return nil
	}
	if in.Spec.ClusterIP == "" && len(in.Spec.ClusterIPs) == 0 {
		problems = append(problems, convert.Problem{
			Object: key.String(), Field: "spec.clusterIP",
			Message: "there is none, and nobody who allocates one: write down an address, or None for a headless Service",
		})
	}
	if len(in.Spec.Ports) == 0 && in.Spec.ClusterIP != v1.ClusterIPNone {
		problems = append(problems, convert.Problem{
			Object: key.String(), Field: "spec.ports", Message: "there is none, so that nothing can be served",
		})
	}
	return problems
}

func (p *parser) decodeSlice(raw []byte) (convert.Object, []convert.Problem, error) {
	var in discoveryv1.EndpointSlice
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, nil, err
	}
	out, problems := convert.FromEndpointSlice(&in, p.nodeName)
	return out, problems, nil
}

func decodeNode(raw []byte) (convert.Object, []convert.Problem, error) {
	var in v1.Node
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, nil, err
	}
	out, problems := convert.FromNode(&in)
	return out, problems, nil
}

func decodeServiceCIDR(raw []byte) (convert.Object, []convert.Problem, error) {
	var in networkingv1.ServiceCIDR
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, nil, err
	}
	out, problems := convert.FromServiceCIDR(&in)
	return out, problems, nil
}

// key is what conversion will give the object.
func (h head) key() convert.Key {
	name := convert.Name{Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}
	if name.Namespace == "" {
		name.Namespace = v1.NamespaceDefault
	}
	switch h.Kind {
	case "Service":
		return convert.Key{Kind: convert.KindService, Name: name}
	case "EndpointSlice":
		return convert.Key{Kind: convert.KindEndpointSlice, Name: name}
	case "Node":
		return convert.Key{Kind: convert.KindNode, Name: convert.Name{Name: name.Name}}
	default:
		return convert.Key{Kind: convert.KindServiceCIDR, Name: convert.Name{Name: name.Name}}
	}
}

// badName says which field of a name is wrong, and how. Names end up in logs and in rulesets,
// so they are held to the rules of an API server.
func badName(key convert.Key) (field, message string) {
	if key.Name.Name == "" {
		return "metadata.name", "the object has no name"
	}
	if errs := validation.IsDNS1123Subdomain(key.Name.Name); len(errs) > 0 {
		return "metadata.name", fmt.Sprintf("%q is not a name: %s", key.Name.Name, errs[0])
	}
	if key.Namespace != "" {
		if errs := validation.IsDNS1123Label(key.Namespace); len(errs) > 0 {
			return "metadata.namespace", fmt.Sprintf("%q is not a name: %s", key.Namespace, errs[0])
		}
	}
	return "", ""
}

// decodeFails reports an object whose fields are of the wrong type.
func (p *parser) decodeFails(object string, err error) {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		p.problem(object, wrong.Field, "want %s, not %s", wanted(wrong.Type), wrong.Value)
		return
	}
	p.problem(object, "", "cannot be decoded: %v", err)
}

// wanted says what a manifest must have where Go has a type.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of at most %d bits", t.Bits())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	default:
		return "an object"
	}
}

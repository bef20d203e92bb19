// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The few fields of SPDX 2.3 that are needed.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		DataLicense   string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		Name             string    `json:"name"`
		ID               string    `json:"SPDXID"`
		Version          string    `json:"versionInfo,omitempty"`
		DownloadLocation string    `json:"downloadLocation"`
		FilesAnalyzed    bool      `json:"filesAnalyzed"`
		Refs             []spdxRef `json:"externalRefs,omitempty"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const (
	noAssertion = "NOASSERTION"
	documentID  = "SPDXRef-DOCUMENT"
	programID   = "SPDXRef-veridict"
)

// newSBOM lists Debian's packages and the modules that the binary says it is built of.
func newSBOM(o options, packages []debianPackage) ([]byte, error) {
	info, err := buildinfo.ReadFile(o.binary)
	if err != nil {
		return nil, fmt.Errorf("read the modules of %s: %w", o.binary, err)
	}
	content, err := os.ReadFile(o.binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	d := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: documentID, Name: "veridict",
		Namespace: "https://veridict.dev/spdx/" + hex.EncodeToString(sum[:]),
		Creation:  spdxCreation{Created: o.epoch.Format("2006-01-02T15:04:05Z"), Creators: []string{"Tool: veridict-image"}},
	}
	d.add(documentID, "DESCRIBES", spdxPackage{Name: info.Main.Path, ID: programID, Version: info.Main.Version}, "")
	d.add(programID, "DEPENDS_ON", spdxPackage{Name: "go", Version: info.GoVersion}, "pkg:golang/stdlib@"+strings.TrimPrefix(info.GoVersion, "go"))
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		d.add(programID, "DEPENDS_ON", spdxPackage{Name: module.Path, Version: module.Version}, "pkg:golang/"+module.Path+"@"+escape(module.Version))
	}
	for _, p := range packages {
		d.add(programID, "DEPENDS_ON", spdxPackage{Name: p.Name, Version: p.Version},
			fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", escape(p.Name), escape(p.Version), p.Arch))
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// escape is for package URLs. Of what versions are made of, they do not have the plus.
func escape(text string) string { return strings.ReplaceAll(text, "+", "%2B") }

func (d *spdxDocument) add(from, relation string, p spdxPackage, locator string) {
	if p.ID == "" {
		p.ID = d.newID(p.Name)
	}
	p.DownloadLocation = noAssertion
	if locator != "" {
		p.Refs = []spdxRef{{"PACKAGE-MANAGER", "purl", locator}}
	}
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, spdxRelationship{from, relation, p.ID})
}

// newID makes of a name what an identifier may consist of. No two packages get the same.
func (d *spdxDocument) newID(name string) string {
	base := "SPDXRef-" + regexp.MustCompile(`[^A-Za-z0-9.]+`).ReplaceAllString(name, "-")
	id := base
	for n := 2; slices.ContainsFunc(d.Packages, func(p spdxPackage) bool { return p.ID == id }); n++ {
		id = fmt.Sprintf("%s-%d", base, n)
	}
	return id
}

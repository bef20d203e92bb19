// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"path/filepath"
	"strings"
)

// isManifest says whether a file in the directory is read, by its name alone.
// Temporary files of editors and of atomic writers do not end in one of the
// three suffixes or begin with a dot or "#".
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasPrefix(name, "~") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	default:
		return false
	}
}

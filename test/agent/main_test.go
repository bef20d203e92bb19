// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"testing"

	"github.com/veridict/veridict/compare/testbed/testmain"
)

func TestMain(m *testing.M) { os.Exit(testmain.Run(m)) }

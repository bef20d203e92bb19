// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane/nftables"
)

func TestLock(t *testing.T) {
	start(t)
	first, err := nftables.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nftables.Lock(); !errors.Is(err, nftables.ErrRunning) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("got error %v, want ErrRunning and process %d", err, os.Getpid())
	}

	elsewhere, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	err = elsewhere.Do(func() error {
		lock, err := nftables.Lock()
		if err != nil {
			return err
		}
		return lock.Close()
	})
	if err != nil {
		t.Error("in another network namespace:", err)
	}

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := nftables.Lock()
	if err != nil {
		t.Fatal("after the first was released:", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

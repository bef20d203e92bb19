// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"
)

// A change that comes while another is being programmed is not in what that sync
// hands over, and waits on.
func TestProxyRemembersWhatCameDuringASync(t *testing.T) {
	now := time.Unix(1000, 0)
	p := NewProxy(time.Minute, func() time.Time { return now })
	p.Queued()
	now = now.Add(time.Second)
	taken := now
	now = now.Add(time.Second)
	p.Queued()
	p.Updated(taken)
	now = now.Add(time.Hour)
	if p.Healthy() {
		t.Error("healthy although the second change has waited for an hour")
	}
	p.Updated(now)
	if !p.Healthy() {
		t.Error("unhealthy although nothing waits")
	}
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"

	"github.com/veridict/veridict/dataplane"
)

// Numbers of include/uapi/linux/netfilter/nfnetlink_conntrack.h.
const (
	msgGetStatsCPU = 4

	ctaStatsInsertFailed = 9
	ctaStatsClashResolve = 14
)

// Clashes returns how many new connections of the namespace, of all protocols, were
// dropped or merged into another since a packet of the same addresses and ports was
// confirmed first. Destinations were translated for each of them. The counter wraps
// around at 2³² for each CPU.
func (k *Kernel) Clashes(ctx context.Context) (uint64, error) {
	conn, err := k.open(ctx)
	if err != nil {
		return 0, fmt.Errorf("read statistics of connection tracking: %w", err)
	}
	defer func() { _ = conn.Close() }()
	messages, err := conn.Execute(message(msgGetStatsCPU, netlink.Dump, dataplane.IPv4, nil))
	if err != nil {
		return 0, fmt.Errorf("read statistics of connection tracking: %w", err)
	}
	var sum uint64
	for _, msg := range messages {
		if len(msg.Data) < 4 {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(msg.Data[4:])
		if err != nil {
			return 0, fmt.Errorf("decode statistics of connection tracking: %w", err)
		}
		ad.ByteOrder = binary.BigEndian
		for ad.Next() {
			if ad.Type() == ctaStatsInsertFailed || ad.Type() == ctaStatsClashResolve {
				sum += uint64(ad.Uint32())
			}
		}
		if err := ad.Err(); err != nil {
			return 0, fmt.Errorf("decode statistics of connection tracking: %w", err)
		}
	}
	return sum, nil
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/nftables"
)

// Cleanup removes the tables of both families, and nothing else. Tables that are
// not there are no error. The program nft is not needed. It must be called with
// the lock held; see [Lock].
func Cleanup(ctx context.Context, log *slog.Logger) (err error) {
	if err := probeKernel(); err != nil {
		return err
	}
	k := &netlinkKernel{own: new(ownership)}
	defer func() { err = errors.Join(err, k.close()) }()
	conn, err := k.connection(ctx)
	if err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	removed := false
	for _, f := range families() {
		tables, err := conn.ListTablesOfFamily(tableFamily(f))
		if err != nil {
			return fmt.Errorf("cleanup: list tables: %w", err)
		}
		for _, table := range tables {
			if table.Name != tableName {
				continue
			}
			conn.DelTable(&nftables.Table{Name: tableName, Family: tableFamily(f)})
			if err := conn.Flush(); err != nil {
				return fmt.Errorf("cleanup: delete table %s %s: %w", f.ip, tableName, err)
			}
			log.Info("removed table", "family", f.id, "table", tableName)
			removed = true
		}
	}
	if !removed {
		log.Info("there is nothing to remove")
	}
	return nil
}

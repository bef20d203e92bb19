// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"sigs.k8s.io/knftables"
)

// kernel is what the Syncer needs of the kernel. Every method is about the table
// of one family; all are bounded by ctx.
type kernel interface {
	// open connects the calling thread's network namespace, unless that is
	// done. The other methods do so too.
	open(ctx context.Context) error
	// objects lists the chains and sets of the table, without rules and
	// elements. A table that does not exist has none.
	objects(ctx context.Context, f family) (objects, error)
	// elements yields all elements of a set in no particular order. It fails
	// rather than yield a part of them.
	elements(ctx context.Context, f family, set string, yield func(element)) error
	// structure runs a transaction of tables, chains, rules and declarations.
	structure(ctx context.Context, f family, build func(*knftables.Transaction)) error
	// pinRules gives chains that write pins their rules, in one transaction
	// without the nft program. The chains are there.
	pinRules(ctx context.Context, f family, chains []chainDecl) error
	// apply runs a transaction of elements.
	apply(ctx context.Context, f family, ops []op) error
	close() error
}

// objects are the names of what a table holds.
type objects struct {
	chains []chainInfo
	sets   []setInfo
}

func (o *objects) chain(name string) *chainInfo {
	for i := range o.chains {
		if o.chains[i].name == name {
			return &o.chains[i]
		}
	}
	return nil
}

func (o *objects) hasChain(name string) bool { return o.chain(name) != nil }

// chainInfo is what the kernel tells about a chain.
type chainInfo struct {
	name string
	base *baseChain
	// drops says that the policy of a base chain is not accept.
	drops bool
}

// String says where the chain hangs.
func (c *chainInfo) String() string {
	if c.base == nil {
		return "a chain without a hook"
	}
	policy := "accept"
	if c.drops {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s priority %d policy %s", c.base.typ, c.base.hook, c.base.priority, policy)
}

// setInfo is what the kernel tells about a set.
type setInfo struct {
	name  string
	kind  setKind
	shape setShape
	// ranges says that keys may be ranges; learns says that packets write
	// elements, which expire.
	ranges, learns bool
	// special says that the set has another flag still.
	special bool
}

// String says what the set can hold.
func (s *setInfo) String() string {
	text := fmt.Sprintf("keys of %d bytes, values of %d bytes", s.shape.key, s.shape.data)
	if s.kind == verdictMap {
		text = fmt.Sprintf("keys of %d bytes, verdicts", s.shape.key)
	}
	for _, flag := range []struct {
		set  bool
		text string
	}{{s.ranges, "ranges"}, {s.learns, "written by packets"}, {s.special, "other flags"}} {
		if flag.set {
			text += ", " + flag.text
		}
	}
	return text
}

// setShape are the lengths of keys and values in bytes, with padding. Verdicts
// have none.
type setShape struct{ key, data uint32 }

// lost says that an error is not about one element: the table is not what it was
// thought to be, or the kernel cannot be reached.
func lost(err error) bool {
	for _, target := range []error{
		context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded, os.ErrPermission, os.ErrClosed,
		syscall.ENOENT, syscall.EEXIST, syscall.EBUSY, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// describe names the elements of a transaction that failed as a whole.
func describe(f family, ops []op, err error) error {
	if len(ops) == 0 {
		return err
	}
	first := ops[0]
	verb, what := "add", first.text(f)
	if first.delete {
		verb, what = "delete", first.keyText(f)
	}
	more := ""
	if len(ops) > 1 {
		more = fmt.Sprintf(" and %d more", len(ops)-1)
	}
	return fmt.Errorf("%s element %s %s %s { %s }%s: %w", verb, f.ip, tableName, first.set, what, more, err)
}

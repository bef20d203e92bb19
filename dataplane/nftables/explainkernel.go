// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// expression is one expression of a rule: attributes by number.
type expression struct {
	name  string
	attrs map[uint16][]byte
}

// listExpressions returns the rules of each chain of the table.
func listExpressions(ctx context.Context, f family) (map[string][][]expression, error) {
	rules := make(map[string][][]expression)
	request := []netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: []byte(tableName + "\x00")}}
	err := dump(ctx, f, unix.NFT_MSG_GETRULE, request, func(attrs []byte) error {
		ad, err := netlink.NewAttributeDecoder(attrs)
		if err != nil {
			return err
		}
		var chain, table string
		var list []expression
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				table = ad.String()
			case unix.NFTA_RULE_CHAIN:
				chain = ad.String()
			case unix.NFTA_RULE_EXPRESSIONS:
				ad.Nested(func(items *netlink.AttributeDecoder) error {
					for items.Next() {
						var e expression
						items.Nested(e.decode)
						list = append(list, e)
					}
					return nil
				})
			}
		}
		if table == tableName {
			rules[chain] = append(rules[chain], list)
		}
		return ad.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of %s %s: %w", f.ip, tableName, err)
	}
	return rules, nil
}

func (e *expression) decode(ad *netlink.AttributeDecoder) error {
	e.attrs = make(map[uint16][]byte)
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			e.name = ad.String()
		case unix.NFTA_EXPR_DATA:
			ad.Nested(func(data *netlink.AttributeDecoder) error {
				for data.Next() {
					e.attrs[data.Type()] = data.Bytes()
				}
				return nil
			})
		}
	}
	return nil
}

// kernelElements asks the kernel for single elements.
type kernelElements struct{ family family }

// find is part of elementSource.
func (k kernelElements) find(ctx context.Context, set, key string) (*element, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(deadline(ctx)); err != nil {
		return nil, fmt.Errorf("set netlink deadline: %w", err)
	}
	var e encoder
	e.text(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	e.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	list := e.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	item := e.open(unix.NFTA_LIST_ELEM)
	e.value(unix.NFTA_SET_ELEM_KEY, key)
	e.close(item)
	e.close(list)
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM),
			Flags: netlink.Request,
		},
		Data: append([]byte{byte(tableFamily(k.family)), unix.NFNETLINK_V0, 0, 0}, e.buf...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up an element of %s %s %s: %w", k.family.ip, tableName, set, err)
	}
	var found *element
	for _, answer := range answers {
		if len(answer.Data) < 4 {
			continue
		}
		err := decodeElements(answer.Data[4:], set, func(e element) { found = &e })
		if err != nil {
			return nil, fmt.Errorf("look up an element of %s %s %s: %w", k.family.ip, tableName, set, err)
		}
	}
	return found, nil
}

// cachedElements asks for each element once.
type cachedElements struct {
	from  elementSource
	known map[string]*element
}

// find is part of elementSource.
func (c *cachedElements) find(ctx context.Context, set, key string) (*element, error) {
	name := set + "\x00" + key
	if e, ok := c.known[name]; ok {
		return e, nil
	}
	e, err := c.from.find(ctx, set, key)
	if err == nil {
		c.known[name] = e
	}
	return e, err
}

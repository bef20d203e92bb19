// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpTries is how often a listing is started again that a change has
// interrupted. Only this process writes the tables, so one repetition is the
// rule: for a hash table that was still being resized.
const dumpTries = 5

// setElemKeyEnd is NFTA_SET_ELEM_KEY_END of include/uapi/linux/netfilter/nf_tables.h,
// since kernel 5.6.
const setElemKeyEnd = 10

// nfDrop is NF_DROP of include/uapi/linux/netfilter.h.
const nfDrop = 0

// elements is part of kernel.
func (k *netlinkKernel) elements(ctx context.Context, f family, set string, yield func(element)) error {
	var list []element
	var err error
	for range dumpTries {
		list = list[:0]
		err = dumpElements(ctx, f, set, func(e element) { list = append(list, e) })
		if !errors.Is(err, errDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("list elements of %s %s %s: %w", f.ip, tableName, set, err)
	}
	for _, e := range list {
		yield(e)
	}
	return nil
}

func dumpElements(ctx context.Context, f family, set string, yield func(element)) error {
	request := []netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(tableName + "\x00")},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	}
	return dump(ctx, f, unix.NFT_MSG_GETSETELEM, request, func(attrs []byte) error {
		return decodeElements(attrs, set, yield)
	})
}

// decodeElements reads the attributes of a message.
func decodeElements(attrs []byte, set string, yield func(element)) error {
	list, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return err
	}
	for list.Next() {
		if list.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		list.Nested(func(items *netlink.AttributeDecoder) error {
			for items.Next() {
				e := element{set: set}
				items.Nested(e.decode)
				yield(e)
			}
			return nil
		})
	}
	return list.Err()
}

// decode reads the attributes of one element.
func (e *element) decode(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			ad.Nested(decodeValue(&e.key))
		case setElemKeyEnd:
			ad.Nested(decodeValue(&e.end))
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.timeout = time.Duration(binary.BigEndian.Uint64(ad.Bytes())) * time.Millisecond
		case unix.NFTA_SET_ELEM_DATA:
			ad.Nested(e.decodeData)
		}
	}
	return nil
}

func decodeValue(into *string) func(*netlink.AttributeDecoder) error {
	return func(value *netlink.AttributeDecoder) error {
		for value.Next() {
			*into = string(value.Bytes())
		}
		return nil
	}
}

func (e *element) decodeData(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_DATA_VALUE:
			e.data = string(ad.Bytes())
		case unix.NFTA_DATA_VERDICT:
			ad.Nested(e.decodeVerdict)
		}
	}
	return nil
}

func (e *element) decodeVerdict(ad *netlink.AttributeDecoder) error {
	ad.ByteOrder = binary.BigEndian
	var code int32
	var chain string
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_VERDICT_CODE:
			code = int32(ad.Uint32())
		case unix.NFTA_VERDICT_CHAIN:
			chain = ad.String()
		}
	}
	switch code {
	case unix.NFT_GOTO:
		e.verdict = gotoVerdict(chain)
	case unix.NFT_JUMP:
		e.verdict = jumpVerdict(chain)
	case nfDrop:
		e.verdict = dropVerdict
	default:
		e.verdict = fmt.Sprintf("verdict %d %s", code, chain)
	}
	return nil
}

// listSets lists the named sets of the table.
func listSets(ctx context.Context, f family) ([]setInfo, error) {
	var sets []setInfo
	request := []netlink.Attribute{{Type: unix.NFTA_SET_TABLE, Data: []byte(tableName + "\x00")}}
	err := dump(ctx, f, unix.NFT_MSG_GETSET, request, func(attrs []byte) error {
		ad, err := netlink.NewAttributeDecoder(attrs)
		if err != nil {
			return err
		}
		ad.ByteOrder = binary.BigEndian
		var info setInfo
		var flags uint32
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_SET_NAME:
				info.name = ad.String()
			case unix.NFTA_SET_FLAGS:
				flags = ad.Uint32()
			case unix.NFTA_SET_KEY_LEN:
				info.shape.key = ad.Uint32()
			case unix.NFTA_SET_DATA_TYPE:
				if ad.Uint32() == unix.NFT_DATA_VERDICT {
					info.kind = verdictMap
				} else {
					info.kind = dataMap
				}
			case unix.NFTA_SET_DATA_LEN:
				info.shape.data = ad.Uint32()
			}
		}
		if info.kind == verdictMap {
			info.shape.data = 0
		}
		const learns = unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
		info.ranges = flags&unix.NFT_SET_INTERVAL != 0
		info.learns = flags&learns == learns
		info.special = flags&(unix.NFT_SET_CONSTANT|unix.NFT_SET_OBJECT) != 0 || !info.learns && flags&learns != 0
		if flags&unix.NFT_SET_ANONYMOUS == 0 {
			sets = append(sets, info)
		}
		return ad.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list sets of %s %s: %w", f.ip, tableName, err)
	}
	return sets, nil
}

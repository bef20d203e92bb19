// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
)

// Numbers of include/uapi/linux/netfilter/nfnetlink_conntrack.h.
const (
	msgGet    = 1
	msgDelete = 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaFilterOrigFlags = 1

	// dstNAT is IPS_DST_NAT of nf_conntrack_common.h.
	dstNAT = 1 << 5
)

// Which parts of the original tuple a filter compares: bits of
// net/netfilter/nf_conntrack_netlink.c, since kernel 5.8. Kernels before list all
// flows.
const (
	filterDest     = 1 << 1
	filterProtocol = 1 << 3
	filterDestPort = 1 << 5
)

const (
	// patience bounds every exchange with the kernel.
	patience = 30 * time.Second
	// tries is how often a listing is started again that the table has changed
	// under.
	tries      = 5
	readBuffer = 4 << 20
)

// Kernel is the table of the calling thread's network namespace. The zero value is
// ready to use.
type Kernel struct {
	// dial opens a socket; that of the kernel if nil.
	dial func(context.Context) (*netlink.Conn, error)
}

var _ Table = (*Kernel)(nil)

// open returns a socket that the caller closes.
func (k *Kernel) open(ctx context.Context) (*netlink.Conn, error) {
	if k.dial != nil {
		return k.dial(ctx)
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	limit := time.Now().Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(limit) {
		limit = d
	}
	if err := errors.Join(conn.SetDeadline(limit), conn.SetReadBuffer(readBuffer)); err != nil {
		return nil, errors.Join(fmt.Errorf("set up netlink socket: %w", err), conn.Close())
	}
	return conn, nil
}

func message(kind uint16, flags netlink.HeaderFlags, family dataplane.Family, attrs []byte) netlink.Message {
	af := byte(unix.AF_INET)
	if family == dataplane.IPv6 {
		af = unix.AF_INET6
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{af, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
}

// List is part of [Table].
func (k *Kernel) List(ctx context.Context, front Frontend, yield func(Flow)) error {
	attrs, err := filter(front)
	if err == nil {
		err = k.listWhole(ctx, front.Family, attrs, yield)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		// The kernel does not know the filter.
		err = k.listWhole(ctx, front.Family, nil, yield)
	}
	if err != nil {
		return fmt.Errorf("list UDP flows to %s (%s): %w", front.VIP, front.Family, err)
	}
	return nil
}

// listWhole starts again where the table has changed meanwhile.
func (k *Kernel) listWhole(ctx context.Context, family dataplane.Family, attrs []byte, yield func(Flow)) error {
	var err error
	for range tries {
		err = k.list(ctx, family, attrs, yield)
		if !errors.Is(err, errInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

var errInterrupted = errors.New("the table has changed while it was listed")

// list yields what the kernel lists. Without attributes that is all flows.
func (k *Kernel) list(ctx context.Context, family dataplane.Family, attrs []byte, yield func(Flow)) error {
	conn, err := k.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Send(message(msgGet, netlink.Dump, family, attrs)); err != nil {
		return err
	}
	for msg, err := range conn.ReceiveIter() {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case msg.Header.Flags&netlink.DumpInterrupted != 0:
			return errInterrupted
		case msg.Header.Type == netlink.Done || len(msg.Data) < 4:
			continue
		}
		flow, isUDP, err := decode(msg.Data[4:])
		if err != nil {
			return err
		}
		if isUDP {
			yield(flow)
		}
	}
	return nil
}

// filter returns the attributes that make the kernel list the flows to a frontend.
// Those to an IPv6 address are asked for by port only: the kernel has the comparison of
// IPv6 addresses the wrong way round and would leave out just them.
func filter(front Frontend) ([]byte, error) {
	vip := front.VIP
	flags := uint32(filterProtocol)
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(ctaTupleOrig, func(tuple *netlink.AttributeEncoder) error {
		if vip.Addr.Is4() {
			flags |= filterDest
			tuple.Nested(ctaTupleIP, func(ip *netlink.AttributeEncoder) error {
				ip.Bytes(ctaIPv4Dst, vip.Addr.AsSlice())
				return nil
			})
		}
		tuple.Nested(ctaTupleProto, func(proto *netlink.AttributeEncoder) error {
			proto.Uint8(ctaProtoNum, unix.IPPROTO_UDP)
			if vip.Port != 0 {
				flags |= filterDestPort
				proto.Uint16(ctaProtoDstPort, vip.Port)
			}
			return nil
		})
		return nil
	})
	e.Nested(ctaFilter, func(f *netlink.AttributeEncoder) error {
		f.Bytes(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags))
		return nil
	})
	return e.Encode()
}

func dstType(addr netip.Addr) uint16 {
	if addr.Is4() {
		return ctaIPv4Dst
	}
	return ctaIPv6Dst
}

func srcType(addr netip.Addr) uint16 {
	if addr.Is4() {
		return ctaIPv4Src
	}
	return ctaIPv6Src
}

// decode reads a flow; isUDP is false for one of another protocol.
func decode(data []byte) (flow Flow, isUDP bool, err error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return flow, false, err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleOrig:
			var t tuple
			ad.Nested(t.decode)
			flow.Source, flow.Dest, isUDP = t.source(), t.dest(), t.protocol == unix.IPPROTO_UDP
		case ctaTupleReply:
			var t tuple
			ad.Nested(t.decode)
			flow.ReplySource = t.source()
		case ctaStatus:
			flow.Translated = ad.Uint32()&dstNAT != 0
		case ctaID:
			flow.ID = ad.Uint32()
		case ctaZone:
			flow.Zone = ad.Uint16()
		}
	}
	return flow, isUDP, ad.Err()
}

// tuple is one direction of a flow.
type tuple struct {
	from, to         netip.Addr
	fromPort, toPort uint16
	protocol         uint8
}

func (t *tuple) source() netip.AddrPort { return netip.AddrPortFrom(t.from, t.fromPort) }
func (t *tuple) dest() netip.AddrPort   { return netip.AddrPortFrom(t.to, t.toPort) }

func (t *tuple) decode(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleIP:
			ad.Nested(t.decodeIP)
		case ctaTupleProto:
			ad.Nested(t.decodeProto)
		}
	}
	return nil
}

func (t *tuple) decodeIP(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		addr, _ := netip.AddrFromSlice(ad.Bytes())
		switch ad.Type() {
		case ctaIPv4Src, ctaIPv6Src:
			t.from = addr
		case ctaIPv4Dst, ctaIPv6Dst:
			t.to = addr
		}
	}
	return nil
}

func (t *tuple) decodeProto(ad *netlink.AttributeDecoder) error {
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case ctaProtoNum:
			t.protocol = ad.Uint8()
		case ctaProtoSrcPort:
			t.fromPort = ad.Uint16()
		case ctaProtoDstPort:
			t.toPort = ad.Uint16()
		}
	}
	return nil
}

// Delete is part of [Table].
func (k *Kernel) Delete(ctx context.Context, flows []Flow) (int, error) {
	conn, err := k.open(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	n := 0
	var failed error
	for i := range flows {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		flow := &flows[i]
		attrs, err := flow.encode()
		if err != nil {
			return n, fmt.Errorf("encode request: %w", err)
		}
		_, err = conn.Execute(message(msgDelete, netlink.Acknowledge, dataplane.FamilyOf(flow.Dest.Addr()), attrs))
		switch {
		case err == nil:
			n++
		case errors.Is(err, os.ErrDeadlineExceeded):
			return n, fmt.Errorf("delete UDP flows: %w", err)
		case !errors.Is(err, unix.ENOENT) && failed == nil:
			failed = fmt.Errorf("delete UDP flow %s to %s: %w", flow.Source, flow.Dest, err)
		}
	}
	return n, failed
}

// encode returns the attributes that name a flow.
func (flow *Flow) encode() ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(ctaTupleOrig, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(ctaTupleIP, func(ip *netlink.AttributeEncoder) error {
			ip.Bytes(srcType(flow.Source.Addr()), flow.Source.Addr().AsSlice())
			ip.Bytes(dstType(flow.Dest.Addr()), flow.Dest.Addr().AsSlice())
			return nil
		})
		tuple.Nested(ctaTupleProto, func(proto *netlink.AttributeEncoder) error {
			proto.Uint8(ctaProtoNum, unix.IPPROTO_UDP)
			proto.Uint16(ctaProtoSrcPort, flow.Source.Port())
			proto.Uint16(ctaProtoDstPort, flow.Dest.Port())
			return nil
		})
		return nil
	})
	e.Uint32(ctaID, flow.ID)
	if flow.Zone != 0 {
		e.Uint16(ctaZone, flow.Zone)
	}
	return e.Encode()
}

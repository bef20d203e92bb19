// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/veridict/veridict/dataplane"
)

const (
	// A transaction is sent with one system call.
	writeBuffer = 16 << 20
	readBuffer  = 4 << 20
	// patience bounds every exchange with the kernel. Other users of nftables
	// may hold the commit lock for long.
	patience = 30 * time.Second
)

// netlinkKernel is the real kernel.
type netlinkKernel struct {
	nft map[dataplane.Family]knftables.Interface
	// conn is opened when it is needed; socket is the one inside it.
	conn   *nftables.Conn
	socket *netlink.Conn
	own    *ownership
	// aside says that another kernel of this process may run the nft program at the
	// same time.
	aside bool

	encoder encoder
	// sequence is the number of the next message.
	sequence uint32
}

func newNetlinkKernel(usable []family) (*netlinkKernel, error) {
	k := &netlinkKernel{own: new(ownership), nft: make(map[dataplane.Family]knftables.Interface)}
	for _, f := range usable {
		nft, err := knftables.New(knftables.Family(f.ip), tableName)
		if err != nil {
			return nil, fmt.Errorf("open nft for family %s: %w", f.ip, err)
		}
		k.nft[f.id] = nft
	}
	return k, nil
}

func tableFamily(f family) nftables.TableFamily {
	if f.id == dataplane.IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// open is part of kernel.
func (k *netlinkKernel) open(ctx context.Context) error {
	_, err := k.connection(ctx)
	return err
}

// connection returns the connection with its deadline set.
func (k *netlinkKernel) connection(ctx context.Context) (*nftables.Conn, error) {
	if k.conn == nil {
		conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
			k.socket = c
			return errors.Join(c.SetWriteBuffer(writeBuffer), c.SetReadBuffer(readBuffer))
		}))
		if err != nil {
			return nil, fmt.Errorf("open netlink socket: %w", err)
		}
		k.conn = conn
		k.own.addPort(k.socket.PID())
	}
	if err := k.socket.SetDeadline(deadline(ctx)); err != nil {
		return nil, fmt.Errorf("set netlink deadline: %w", err)
	}
	return k.conn, nil
}

func deadline(ctx context.Context) time.Time {
	limit := time.Now().Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(limit) {
		return d
	}
	return limit
}

// close is part of kernel.
func (k *netlinkKernel) close() error {
	if k.conn == nil {
		return nil
	}
	conn := k.conn
	k.conn, k.socket = nil, nil
	return conn.CloseLasting()
}

// structure is part of kernel.
func (k *netlinkKernel) structure(ctx context.Context, f family, build func(*knftables.Transaction)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tx := k.nft[f.id].NewTransaction()
	build(tx)
	if tx.NumOperations() == 0 {
		return nil
	}
	return k.own.during(func() (uint32, error) { return generation(ctx) }, func() error {
		return nftError(ctx, k.nft[f.id].Run(ctx, tx))
	})
}

// nftError says that it was nft that failed, and why it was killed if it was.
func nftError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("run nft: it does not answer: %w", ctx.Err())
	case ctx.Err() != nil:
		return fmt.Errorf("run nft: %w", context.Cause(ctx))
	default:
		return fmt.Errorf("run nft: %w", err)
	}
}

// generation returns the number of transactions that the network namespace has
// seen.
func generation(ctx context.Context) (uint32, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(deadline(ctx)); err != nil {
		return 0, fmt.Errorf("set netlink deadline: %w", err)
	}
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("get the generation of the rules: %w", err)
	}
	if len(replies) == 0 || len(replies[0].Data) < 4 {
		return 0, errors.New("get the generation of the rules: empty answer")
	}
	return generationOf(replies[0]), nil
}

// apply is part of kernel.
func (k *netlinkKernel) apply(ctx context.Context, f family, ops []op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := k.open(ctx); err != nil {
		return err
	}
	data, n := k.encoder.transaction(f, ops, k.sequence)
	if k.aside {
		defer k.own.exclude()()
	}
	if err := k.send(data, n); err != nil {
		// More answers may be on their way; nobody must take them for
		// answers to the next transaction.
		return errors.Join(err, k.close())
	}
	return nil
}

// send sends a transaction of n messages and waits for the answer to the last one
// before its end. Before that the kernel only tells what went wrong.
func (k *netlinkKernel) send(data []byte, n uint32) error {
	k.sequence += n
	last := k.sequence - 2
	raw, err := k.socket.SyscallConn()
	if err != nil {
		return fmt.Errorf("send transaction: %w", err)
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendto(int(fd), data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(sendErr, unix.EAGAIN)
	})
	if err := errors.Join(err, sendErr); err != nil {
		return fmt.Errorf("send transaction: %w", err)
	}
	for {
		answers, err := k.socket.Receive()
		if err != nil {
			return fmt.Errorf("run transaction: %w", err)
		}
		for _, answer := range answers {
			if answer.Header.Sequence == last {
				return nil
			}
		}
	}
}

// objects is part of kernel.
func (k *netlinkKernel) objects(ctx context.Context, f family) (objects, error) {
	conn, err := k.connection(ctx)
	if err != nil {
		return objects{}, err
	}
	tables, err := conn.ListTablesOfFamily(tableFamily(f))
	if err != nil {
		return objects{}, errors.Join(fmt.Errorf("list tables: %w", err), k.close())
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName }) {
		return objects{}, nil
	}
	var list objects
	chains, err := conn.ListChainsOfTableFamily(tableFamily(f))
	if err != nil {
		return objects{}, errors.Join(fmt.Errorf("list chains: %w", err), k.close())
	}
	for _, chain := range chains {
		if chain.Table.Name == tableName {
			list.chains = append(list.chains, describeChain(chain))
		}
	}
	if list.sets, err = listSets(ctx, f); err != nil {
		return objects{}, err
	}
	return list, nil
}

func describeChain(c *nftables.Chain) chainInfo {
	info := chainInfo{name: c.Name}
	if c.Hooknum != nil && c.Priority != nil {
		info.base = &baseChain{
			typ:      knftables.BaseChainType(c.Type),
			hook:     hookName(*c.Hooknum),
			priority: int(*c.Priority),
		}
		info.drops = c.Policy != nil && *c.Policy != nftables.ChainPolicyAccept
	}
	return info
}

func hookName(hook nftables.ChainHook) knftables.BaseChainHook {
	hooks := []knftables.BaseChainHook{
		unix.NF_INET_PRE_ROUTING:  knftables.PreroutingHook,
		unix.NF_INET_LOCAL_IN:     knftables.InputHook,
		unix.NF_INET_FORWARD:      knftables.ForwardHook,
		unix.NF_INET_LOCAL_OUT:    knftables.OutputHook,
		unix.NF_INET_POST_ROUTING: knftables.PostroutingHook,
	}
	if int(hook) < len(hooks) {
		return hooks[hook]
	}
	return knftables.BaseChainHook(fmt.Sprint(hook))
}

// dump asks for all objects of one kind and yields the attributes of each. It
// returns an error if the kernel says that the dump was interrupted by a change,
// since a part may be missing then.
func dump(ctx context.Context, f family, msgType uint16, request []netlink.Attribute, yield func([]byte) error) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := errors.Join(conn.SetReadBuffer(readBuffer), conn.SetDeadline(deadline(ctx))); err != nil {
		return fmt.Errorf("set up netlink socket: %w", err)
	}
	attrs, err := netlink.MarshalAttributes(request)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	_, err = conn.Send(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | msgType),
			Flags: netlink.Request | netlink.Dump,
		},
		Data: append([]byte{byte(tableFamily(f)), unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	buffer := make([]byte, dumpBuffer)
	for {
		// Patience is for one message: a large set takes many.
		if err := errors.Join(ctx.Err(), conn.SetDeadline(deadline(ctx))); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		n, err := receive(conn, buffer)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		for _, msg := range messages {
			if done, err := takeDumped(&msg, yield); done || err != nil {
				return err
			}
		}
	}
}

// dumpBuffer is the largest that the kernel fills at once. For each message of a dump
// it goes through the set from the beginning, so that few large ones take much less
// time than many small ones: 65,000 elements 0.2 s in place of 0.95 s.
const dumpBuffer = 64 << 10

// receive reads what one system call has to give.
func receive(conn *netlink.Conn, buffer []byte) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var receiveErr error
	err = raw.Read(func(fd uintptr) bool {
		n, _, receiveErr = unix.Recvfrom(int(fd), buffer, 0)
		return !errors.Is(receiveErr, unix.EAGAIN) && !errors.Is(receiveErr, unix.EINTR)
	})
	return n, errors.Join(err, receiveErr)
}

// takeDumped yields one message of a dump, and says whether it was the last one.
func takeDumped(msg *syscall.NetlinkMessage, yield func([]byte) error) (done bool, err error) {
	const header = 4
	switch {
	case msg.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
		return true, errDumpInterrupted
	case msg.Header.Type == unix.NLMSG_DONE || msg.Header.Type == unix.NLMSG_ERROR:
		if len(msg.Data) >= header {
			if code := int32(binary.NativeEndian.Uint32(msg.Data)); code < 0 {
				return true, fmt.Errorf("receive: %w", syscall.Errno(-code))
			}
		}
		return true, nil
	case len(msg.Data) < header:
		return false, nil
	default:
		return false, yield(msg.Data[header:])
	}
}

var errDumpInterrupted = errors.New("the table was changed while it was listed")

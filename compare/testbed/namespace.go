// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// threadNetNS is the network namespace of the thread that opens it.
const threadNetNS = "/proc/thread-self/ns/net"

// errExited is what [Namespace.Do] returns if its function ends the goroutine,
// as testing.T.FailNow does.
var errExited = errors.New("the function ended its goroutine")

// Namespace is a network namespace without a name. Its methods are safe for
// concurrent use, but for Close.
type Namespace struct {
	file    *os.File
	netlink *netlink.Handle
	// tcpPorts and udpPorts are the source ports of [Load].
	tcpPorts, udpPorts sourcePorts
}

// NewNamespace makes a network namespace in which only the loopback interface
// exists, and is up. The caller closes it.
func NewNamespace() (*Namespace, error) {
	var ns *Namespace
	err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		ns, err = openNamespace()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	if err := ns.setUp("lo"); err != nil {
		ns.Close()
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	return ns, nil
}

// CurrentNamespace returns the network namespace of the calling thread, which
// is that of the process unless the caller is inside [Namespace.Do]. The caller
// closes it.
func CurrentNamespace() (*Namespace, error) {
	ns, err := openNamespace()
	if err != nil {
		return nil, fmt.Errorf("current network namespace: %w", err)
	}
	return ns, nil
}

func openNamespace() (*Namespace, error) {
	file, err := os.Open(threadNetNS)
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Namespace{file: file, netlink: handle}, nil
}

// FD returns the descriptor of the namespace, for instance for google/nftables'
// WithNetNSFd. It is valid until Close.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Netlink returns a handle for links, addresses and routes of the namespace.
// It is valid until Close.
func (n *Namespace) Netlink() *netlink.Handle { return n.netlink }

// Close gives up the namespace. The kernel removes it when no socket is left
// in it either.
func (n *Namespace) Close() error {
	n.netlink.Close()
	return n.file.Close()
}

// Do runs fn on a thread inside the namespace and returns its error. Sockets
// that fn opens stay in the namespace, whoever uses them later; goroutines that
// fn starts run outside of it.
func (n *Namespace) Do(fn func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// onOwnThread runs fn in a goroutine with a thread of its own, and restores the
// network namespace of that thread. If that fails the goroutine ends while it
// still holds the thread, and the runtime destroys it: no other goroutine can
// ever run in the wrong namespace.
func onOwnThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errExited
		defer func() { result <- err }()
		runtime.LockOSThread()
		before, openErr := os.Open(threadNetNS)
		if openErr != nil {
			runtime.UnlockOSThread()
			err = openErr
			return
		}
		defer func() {
			if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			before.Close()
		}()
		err = fn()
	}()
	return <-result
}

// setUp brings a link up.
func (n *Namespace) setUp(name string) error {
	link, err := n.netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := n.netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up link %s: %w", name, err)
	}
	return nil
}

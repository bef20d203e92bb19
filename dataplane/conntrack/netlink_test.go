// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/dataplane"
)

// script is a kernel that gives one answer after the other.
type script struct {
	t        *testing.T
	answers  []answer
	requests []netlink.Message
}

// answer is flows in a dump, or an error.
type answer struct {
	flows []Flow
	errno unix.Errno
	// interrupted says that the table has changed while it was listed.
	interrupted bool
}

func (s *script) kernel() *Kernel {
	return &Kernel{dial: func(context.Context) (*netlink.Conn, error) {
		return nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
			if len(requests) == 0 {
				return nil, errors.New("the script has ended")
			}
			s.requests = append(s.requests, requests[0])
			if len(s.answers) == 0 {
				return nil, errors.New("one request too many")
			}
			now := s.answers[0]
			s.answers = s.answers[1:]
			if now.errno != 0 || requests[0].Header.Flags&netlink.Dump != netlink.Dump {
				header := requests[0].Header
				header.Type, header.Flags = netlink.Error, 0
				return []netlink.Message{{Header: header, Data: nlenc.Int32Bytes(-int32(now.errno))}}, nil
			}
			return s.dump(requests[0], now), nil
		}), nil
	}}
}

// dump lists flows, as their request encodes them and with a reply.
func (s *script) dump(request netlink.Message, a answer) []netlink.Message {
	s.t.Helper()
	header := request.Header
	header.Flags = netlink.Multi
	if a.interrupted {
		header.Flags |= netlink.DumpInterrupted
	}
	var list []netlink.Message
	for _, flow := range a.flows {
		attrs, err := flow.encode()
		if err != nil {
			s.t.Fatal(err)
		}
		list = append(list, netlink.Message{Header: header, Data: append([]byte{unix.AF_INET, 0, 0, 0}, attrs...)})
	}
	header.Type = netlink.Done
	return append(list, netlink.Message{Header: header, Data: make([]byte, 4)})
}

func flowTo(dest string, id uint32) Flow {
	return Flow{ID: id, Source: netip.MustParseAddrPort("10.1.0.1:1000"), Dest: netip.MustParseAddrPort(dest)}
}

func TestKernelList(t *testing.T) {
	flows := []Flow{flowTo("172.30.0.10:53", 1), flowTo("172.30.0.10:53", 2)}
	cases := []struct {
		name    string
		answers []answer
		want    []Flow
		// filtered says of each request whether it has a filter.
		filtered []bool
		err      error
	}{
		{name: "filtered", answers: []answer{{flows: flows}}, want: flows, filtered: []bool{true}},
		{name: "none", answers: []answer{{}}, filtered: []bool{true}},
		{
			name: "the filter is not known", answers: []answer{{errno: unix.EOPNOTSUPP}, {flows: flows}},
			want: flows, filtered: []bool{true, false},
		},
		{
			name: "interrupted, and complete", answers: []answer{{flows: flows[:1], interrupted: true}, {flows: flows}},
			want: flows, filtered: []bool{true, true},
		},
		{name: "interrupted by a signal", answers: []answer{{errno: unix.EINTR}, {flows: flows}}, want: flows, filtered: []bool{true, true}},
		{name: "not allowed", answers: []answer{{errno: unix.EPERM}}, filtered: []bool{true}, err: unix.EPERM},
		{
			name: "refused anyway", answers: []answer{{errno: unix.EINVAL}, {errno: unix.EINVAL}},
			filtered: []bool{true, false}, err: unix.EINVAL,
		},
	}
	front := Frontend{dataplane.IPv4, dataplane.VIP{Addr: netip.MustParseAddr("172.30.0.10"), Protocol: dataplane.UDP, Port: 53}}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			s := &script{t: t, answers: tc.answers}
			var got []Flow
			err := s.kernel().List(t.Context(), front, func(flow Flow) { got = append(got, flow) })
			if !errors.Is(err, tc.err) {
				t.Errorf("error %v, want %v", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
				t.Errorf("flows (-want +got):\n%s", diff)
			}
			var filtered []bool
			for _, r := range s.requests {
				filtered = append(filtered, len(r.Data) > 4)
			}
			if diff := cmp.Diff(tc.filtered, filtered); diff != "" {
				t.Errorf("requests with a filter (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKernelGivesUpOnATableInMotion(t *testing.T) {
	s := &script{t: t}
	for range tries {
		s.answers = append(s.answers, answer{flows: []Flow{flowTo("172.30.0.10:53", 1)}, interrupted: true})
	}
	err := s.kernel().List(t.Context(), Frontend{Family: dataplane.IPv4}, func(Flow) {})
	if !errors.Is(err, errInterrupted) || len(s.answers) > 0 {
		t.Errorf("error %v with %d answers left, want %v after %d tries", err, len(s.answers), errInterrupted, tries)
	}
}

// One that is gone is not counted, one that cannot be removed keeps no other.
func TestKernelDelete(t *testing.T) {
	s := &script{t: t, answers: []answer{{}, {errno: unix.ENOENT}, {errno: unix.EBUSY}, {}}}
	flows := []Flow{flowTo("172.30.0.10:1", 1), flowTo("172.30.0.10:2", 2), flowTo("172.30.0.10:3", 3), flowTo("172.30.0.10:4", 4)}
	n, err := s.kernel().Delete(t.Context(), flows)
	if n != 2 || !errors.Is(err, unix.EBUSY) {
		t.Errorf("%d deleted, error %v, want 2 and %v", n, err, unix.EBUSY)
	}
	var got []Flow
	for _, r := range s.requests {
		flow, _, err := decode(r.Data[4:])
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, flow)
	}
	if diff := cmp.Diff(flows, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("asked to delete (-want +got):\n%s", diff)
	}
}

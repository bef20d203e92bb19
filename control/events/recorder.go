// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane/runner"
)

// Reasons of events.
const (
	// NotServed: something of the object is not served as it is written.
	NotServed = "NotServed"
	// FailedSync: the kernel of a node cannot be programmed.
	FailedSync = "FailedSync"
)

const (
	controllerName = "veridict.dev/proxy"
	action         = "Program"

	// Burst is how many events are written in a minute at most.
	Burst = 20
	// window is the minute.
	window = time.Minute
	// writeTimeout bounds one request.
	writeTimeout = 5 * time.Second
	// maxNote is the API's limit of the text in bytes.
	maxNote = 1024
)

// Client is the API server, as far as events need it. A clientset of client-go is one.
type Client interface {
	CoreV1() corev1client.CoreV1Interface
	DiscoveryV1() discoveryclient.DiscoveryV1Interface
	EventsV1() eventsclient.EventsV1Interface
}

// Options are what a [Recorder] is made of.
type Options struct {
	Client Client
	// NodeName is this node's.
	NodeName string
	Logger   *slog.Logger
	// Clock is the system's clock if nil.
	Clock runner.Clock
}

// Recorder writes events. Its methods are safe for concurrent use and do not block.
type Recorder struct {
	o Options

	mu sync.Mutex
	// told are the problems that were there at the last call.
	told   map[convert.Problem]bool
	failed bool
	queue  []*eventsv1.Event
	// begun is when the current minute has begun, and left how many it may still have.
	begun time.Time
	left  int
	woken chan struct{}
	// refused is the last error that was logged.
	refused string
}

// New returns a recorder that has written nothing.
func New(o Options) *Recorder {
	if o.Clock == nil {
		o.Clock = runner.RealClock{}
	}
	return &Recorder{o: o, told: map[convert.Problem]bool{}, woken: make(chan struct{}, 1)}
}

// SetProblems takes all problems that there are now.
func (r *Recorder) SetProblems(problems []convert.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(problems) == 0 && len(r.told) == 0 {
		return
	}
	told := make(map[convert.Problem]bool, len(problems))
	for _, problem := range problems {
		if !r.told[problem] {
			if regarding, ok := reference(problem.Object); ok {
				r.add(r.ofObject(regarding, problem))
			}
		}
		told[problem] = true
	}
	r.told = told
}

// SetFailure takes how the last sync ended, nil for well.
func (r *Recorder) SetFailure(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && !r.failed {
		r.add(r.ofNode(err))
	}
	r.failed = err != nil
}

// add queues an event unless the minute has enough of them.
func (r *Recorder) add(event *eventsv1.Event) {
	now := r.o.Clock.Now()
	if now.Sub(r.begun) >= window {
		r.begun, r.left = now, Burst
	}
	if r.left == 0 {
		return
	}
	r.left--
	event.EventTime = metav1.NewMicroTime(now)
	event.Type, event.Action = v1.EventTypeWarning, action
	event.ReportingController, event.ReportingInstance = controllerName, r.o.NodeName
	if len(event.Note) > maxNote {
		event.Note = strings.ToValidUTF8(event.Note[:maxNote], "")
	}
	r.queue = append(r.queue, event)
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// ofObject has neither UID nor name yet, see identify.
func (r *Recorder) ofObject(regarding v1.ObjectReference, problem convert.Problem) *eventsv1.Event {
	note := problem.Message
	if problem.Field != "" {
		note = problem.Field + ": " + note
	}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(regarding)}, Regarding: regarding, Reason: NotServed, Note: note,
	}
}

// identify fills in the UID of the object, by which kubectl describe finds events, and a
// name that is the same on all nodes.
func (r *Recorder) identify(ctx context.Context, event *eventsv1.Event) error {
	if event.Name != "" {
		return nil
	}
	regarding := &event.Regarding
	var object metav1.Object
	var err error
	if regarding.Kind == convert.KindService.String() {
		object, err = r.o.Client.CoreV1().Services(regarding.Namespace).Get(ctx, regarding.Name, metav1.GetOptions{})
	} else {
		object, err = r.o.Client.DiscoveryV1().EndpointSlices(regarding.Namespace).Get(ctx, regarding.Name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	regarding.UID = object.GetUID()
	sum := sha256.Sum256([]byte(string(regarding.UID) + event.Note))
	event.Name = eventName(regarding.Name, hex.EncodeToString(sum[:8]))
	return nil
}

func (r *Recorder) ofNode(err error) *eventsv1.Event {
	// The kubelet's events have the name for a UID, too: kubectl describe looks for it.
	regarding := v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.o.NodeName, UID: types.UID(r.o.NodeName)}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespaceOf(regarding), Name: eventName(r.o.NodeName, fmt.Sprintf("%x", r.o.Clock.Now().UnixNano())),
		},
		Regarding: regarding, Reason: FailedSync,
		Note: "the kernel cannot be programmed, connections to Services go by older rules: " + err.Error(),
	}
}

// Run writes what is queued until ctx is done, and returns its cause.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.woken:
		}
		r.mu.Lock()
		queue := r.queue
		r.queue = nil
		r.mu.Unlock()
		for _, event := range queue {
			r.write(ctx, event)
		}
	}
}

func (r *Recorder) write(ctx context.Context, event *eventsv1.Event) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := r.identify(ctx, event)
	if apierrors.IsNotFound(err) {
		return
	}
	if err == nil {
		_, err = r.o.Client.EventsV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{FieldManager: "veridict"})
	}
	if err == nil || apierrors.IsAlreadyExists(err) {
		r.refused = ""
		return
	}
	if text := reasonOf(err); text != r.refused {
		r.refused = text
		r.o.Logger.Warn("an event could not be written; what it says is in this log", "regarding", event.Regarding.Name, "err", err)
	}
}

// reasonOf is the same for all events that are refused for the same reason.
func reasonOf(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return err.Error()
}

// reference returns what "Kind namespace/name" stands for. Not everything that has a
// problem is an object that events can regard.
func reference(object string) (v1.ObjectReference, bool) {
	kind, name, found := strings.Cut(object, " ")
	if !found {
		return v1.ObjectReference{}, false
	}
	switch kind {
	case convert.KindService.String():
		namespace, name, found := strings.Cut(name, "/")
		return v1.ObjectReference{Kind: kind, APIVersion: "v1", Namespace: namespace, Name: name}, found
	case convert.KindEndpointSlice.String():
		namespace, name, found := strings.Cut(name, "/")
		return v1.ObjectReference{Kind: kind, APIVersion: discoveryv1.SchemeGroupVersion.String(), Namespace: namespace, Name: name}, found
	default:
		return v1.ObjectReference{}, false
	}
}

// namespaceOf is where events of an object live; those of cluster-wide ones are in
// the default namespace.
func namespaceOf(regarding v1.ObjectReference) string {
	if regarding.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return regarding.Namespace
}

// maxName is the API's limit of names.
const maxName = 253

func eventName(object, suffix string) string {
	return object[:min(len(object), maxName-len(suffix)-1)] + "." + suffix
}

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/http"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Connection says where the API server is and how it is spoken to.
type Connection struct {
	// Kubeconfig is the path of a file, empty for none. Master is the URL of a server
	// that goes before the file's. With neither, the pod's service account tells.
	Kubeconfig, Master string
	// ContentType is what objects are asked for in; JSON is taken, too.
	ContentType string
	QPS         float32
	Burst       int
	// UserAgent is how requests name their sender.
	UserAgent string
}

// ErrNoServer is the error of [Connect] where nothing says where the API server is.
var ErrNoServer = errors.New("nothing says where the API server is")

// Clientset is a [Client] that can create events, too.
type Clientset struct {
	core       *corev1client.CoreV1Client
	discovery  *discoveryclient.DiscoveryV1Client
	networking *networkingclient.NetworkingV1Client
	events     *eventsclient.EventsV1Client
}

// Connect reads the kubeconfig. It sends nothing.
func Connect(c Connection) (*Clientset, error) {
	config, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	config.ContentType = c.ContentType
	config.AcceptContentTypes = c.ContentType + ",application/json"
	config.QPS, config.Burst = c.QPS, c.Burst
	config.UserAgent = c.UserAgent
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return newClientset(config, client)
}

func (c Connection) restConfig() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, ErrNoServer
		}
		if err != nil {
			return nil, fmt.Errorf("connect to the API server with the pod's service account: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}},
	).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("kubeconfig %s: it names no cluster", c.Kubeconfig)
	case err != nil && c.Kubeconfig != "":
		return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
	case err != nil:
		return nil, fmt.Errorf("connect to %s: %w", c.Master, err)
	}
	return config, nil
}

func newClientset(config *rest.Config, client *http.Client) (*Clientset, error) {
	var set Clientset
	var errs [4]error
	set.core, errs[0] = corev1client.NewForConfigAndClient(config, client)
	set.discovery, errs[1] = discoveryclient.NewForConfigAndClient(config, client)
	set.networking, errs[2] = networkingclient.NewForConfigAndClient(config, client)
	set.events, errs[3] = eventsclient.NewForConfigAndClient(config, client)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &set, nil
}

// CoreV1 is part of [Client].
func (s *Clientset) CoreV1() corev1client.CoreV1Interface { return s.core }

// DiscoveryV1 is part of [Client].
func (s *Clientset) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return s.discovery }

// NetworkingV1 is part of [Client].
func (s *Clientset) NetworkingV1() networkingclient.NetworkingV1Interface { return s.networking }

// EventsV1 creates events.
func (s *Clientset) EventsV1() eventsclient.EventsV1Interface { return s.events }

// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Users of the API server; each is its own token.
const (
	// Admin may do everything.
	Admin = "admin"
	// ServiceAccount is veridict's, which may do what deploy/base grants.
	ServiceAccount = "system:serviceaccount:kube-system:veridict"
	// KubeProxyUser may do what kube-apiserver grants kube-proxy.
	KubeProxyUser = "system:kube-proxy"
	// Stranger may do nothing.
	Stranger = "stranger"
)

const (
	etcdURL = "http://127.0.0.1:2379"
	// URL is that of the API server.
	URL          = "https://127.0.0.1:6443"
	readyTimeout = 2 * time.Minute
)

// ControlPlane is etcd and kube-apiserver.
type ControlPlane struct {
	dir, programs string
	etcd, api     *Program
}

// NewControlPlane starts both and waits until the API server is ready. Data and logs
// are below dir, kube-apiserver in the directory programs; etcd is Debian's.
func NewControlPlane(ctx context.Context, dir, programs string) (*ControlPlane, error) {
	c := &ControlPlane{dir: dir, programs: programs}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	var err error
	c.etcd, err = start(dir, "etcd", "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL, "--listen-peer-urls", "http://127.0.0.1:2380",
		"--quota-backend-bytes", "8589934592")
	if err != nil {
		return nil, err
	}
	if err := c.etcd.await(ctx, readyTimeout, etcdHealthy); err != nil {
		c.Close()
		return nil, err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func etcdHealthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, etcdURL+"/health", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func (c *ControlPlane) writeFiles() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	var tokens strings.Builder
	for _, user := range []string{Admin, ServiceAccount, KubeProxyUser, Stranger} {
		groups := ""
		if user == Admin {
			groups = ",system:masters"
		}
		fmt.Fprintf(&tokens, "%s,%s,%s%s\n", user, user, user, groups)
	}
	for name, text := range map[string][]byte{"sa.key": pem.EncodeToMemory(block), "tokens.csv": []byte(tokens.String())} {
		if err := os.WriteFile(filepath.Join(c.dir, name), text, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// StartAPIServer starts it and waits until it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	key := filepath.Join(c.dir, "sa.key")
	var err error
	c.api, err = start(c.dir, "kube-apiserver", filepath.Join(c.programs, "kube-apiserver"),
		"--etcd-servers", etcdURL, "--bind-address", "127.0.0.1", "--secure-port", "6443", "--advertise-address", "10.240.0.1",
		"--cert-dir", filepath.Join(c.dir, "certs"), "--service-cluster-ip-range", "10.96.0.0/12",
		"--allow-privileged", "--authorization-mode", "RBAC", "--token-auth-file", filepath.Join(c.dir, "tokens.csv"),
		"--service-account-issuer", "https://veridict.test", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none",
		"--max-requests-inflight", "2000", "--max-mutating-requests-inflight", "1000")
	if err != nil {
		return err
	}
	return c.api.await(ctx, readyTimeout, func(ctx context.Context) error {
		client, err := c.Client(Admin)
		if err != nil {
			return err
		}
		return client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// StopAPIServer ends it; etcd goes on.
func (c *ControlPlane) StopAPIServer() { c.api.Kill() }

// APIServer is the running one.
func (c *ControlPlane) APIServer() *Program { return c.api }

// Compact has etcd forget what was before now, so that a watch cannot go on from there.
func (c *ControlPlane) Compact(ctx context.Context) error {
	script := `r=$(etcdctl --endpoints "$0" endpoint status -w json | sed 's/.*"revision":\([0-9]*\).*/\1/') && etcdctl --endpoints "$0" compact "$r"`
	cmd := exec.CommandContext(ctx, "sh", "-c", script, etcdURL)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compact etcd: %w: %s", err, out)
	}
	return nil
}

// Kubeconfig writes a kubeconfig of a user and returns its path. url is [URL] unless
// something stands before the API server.
func (c *ControlPlane) Kubeconfig(user, url string) (string, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server: url, CertificateAuthority: filepath.Join(c.dir, "certs", "apiserver.crt"), TLSServerName: "127.0.0.1",
	}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: user}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: user}
	config.CurrentContext = "test"
	file, err := os.CreateTemp(c.dir, "kubeconfig-")
	if err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	file.Close()
	if err := clientcmd.WriteToFile(*config, file.Name()); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return file.Name(), nil
}

// Client returns a client of a user, without a limit of requests.
func (c *ControlPlane) Client(user string) (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(&rest.Config{
		Host: URL, BearerToken: user, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(c.dir, "certs", "apiserver.crt")},
		ContentConfig: rest.ContentConfig{
			ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	})
}

// Close ends both programs.
func (c *ControlPlane) Close() {
	for _, p := range []*Program{c.api, c.etcd} {
		if p != nil {
			p.Kill()
		}
	}
}

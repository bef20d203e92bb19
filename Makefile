# SPDX-FileCopyrightText: The veridict authors
# SPDX-License-Identifier: Apache-2.0

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

# Where Go's archive and the network tools are installed; not every PATH has it.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin

GOLANGCI_LINT := bin/golangci-lint
KUBERNETES    := bin/kube-apiserver bin/kube-proxy

# What compiles the BPF programs: only for make generate and make check, since
# their output is committed.
export CLANG      ?= clang-14
export LLVM_STRIP ?= llvm-strip-14
SCRIPTS       := .ci/run $(shell find test -name '*.sh')

##@ Use

.PHONY: help
help: ## print this help
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build bin/veridict
	@CGO_ENABLED=0 go build -trimpath -buildvcs=auto -ldflags '-s -w' -o bin/veridict ./cmd/veridict

.PHONY: image
image: build ## build bin/veridict-image.tar, an OCI image, without a container engine (Debian, Ubuntu)
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} go run ./deploy/image

.PHONY: demo
demo: setup-demo build ## watch connections spread over endpoints, no cluster needed (root)
	@bin/veridict demo

##@ Test

.PHONY: test
test: setup-test ## run all tests: unit, root, flows (root)
	@test/run.sh unit root flows

.PHONY: test-unit
test-unit: setup-test ## run the tests that need no privilege, with the race detector
	@test/run.sh unit

.PHONY: test-root
test-root: setup-test ## run the tests that need root, in network namespaces of their own
	@test/run.sh root

.PHONY: test-flows
test-flows: setup-test ## run ../shared/flowcheck in both layouts, stepwise and each step alone (root)
	@test/run.sh allflows

.PHONY: test-vm
test-vm: setup-vm ## run test/kernel on kernels 6.1 and 6.12 in qemu (root; VMKERNEL chooses one)
	@test/run.sh vm

.PHONY: test-apiserver
test-apiserver: setup-apiserver build $(KUBERNETES) ## run the tests against a real API server and kube-proxy (root)
	@test/run.sh apiserver

.PHONY: bench-apiserver
bench-apiserver: setup-apiserver build $(KUBERNETES) ## print speed and memory beside kube-proxy on the same API server (root)
	@cd test/apiserver && go run ./bench

.PHONY: bench
bench: setup-demo build ## print speed and size figures beside their targets (root)
	@go run ./test/bench

##@ Develop

.PHONY: check
check: setup-generate ## check formatting, modules, go vet and generated files; changes nothing
	@test/check.sh

.PHONY: lint
lint: setup-lint tools ## run golangci-lint and shellcheck
	@$(GOLANGCI_LINT) run ./...
	@cd test/apiserver && ../../$(GOLANGCI_LINT) run ./...
	@shellcheck $(SCRIPTS)

.PHONY: format
format: tools ## format all Go files
	@$(GOLANGCI_LINT) fmt ./...
	@cd test/apiserver && ../../$(GOLANGCI_LINT) fmt ./...

.PHONY: generate
generate: setup-generate ## rewrite generated and golden files
	@test/generate.sh

.PHONY: tools
tools: $(GOLANGCI_LINT) ## build the linter that test/tools/go.mod names

$(GOLANGCI_LINT): test/tools/go.mod test/tools/go.sum
	@echo 'building golangci-lint (a minute or two, once)'
	@CGO_ENABLED=0 go build -C test/tools -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

# One build of both, as they share most packages. Their versions are those of the
# module; they say none without the flag.
$(KUBERNETES) &: test/apiserver/go.mod test/apiserver/go.sum
	@echo 'building kube-apiserver and kube-proxy (5 minutes or more, once)'
	@CGO_ENABLED=0 go build -C test/apiserver -o ../../bin/ \
	  -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$(go list -C test/apiserver -m -f '{{.Version}}' k8s.io/kubernetes)" \
	  k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-proxy
	@touch $(KUBERNETES)

.PHONY: setup
setup: ## install every program that a target needs and that is missing (root)
	@test/setup.sh all

.PHONY: setup-demo setup-test setup-apiserver setup-vm setup-lint setup-generate
setup-demo setup-test setup-apiserver setup-vm setup-lint setup-generate: setup-%:
	@test/setup.sh $*

.PHONY: clean
clean: ## remove what was built
	@rm -rf bin .cache

# agentbox: `make` shows what there is. Everything runs as root, or asks sudo for
# what needs it, and installs missing packages by name.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := help

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

BIN     := $(CURDIR)/bin
LDFLAGS := -s -w -X main.release=$(VERSION)
# no_grpc: the shim speaks TTRPC only, so it is built as containerd builds its own.
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -tags no_grpc -ldflags '$(LDFLAGS)'
PROGRAMS := $(notdir $(wildcard cmd/*))
UNIT    := ./cmd/... ./pkg/... ./deploy/... ./test/vm/... ./test/bench/... ./test/layout/...
SUITE   := test/suite
FUZZTIME ?= 5m
# What a suite promises is never skipped there: a missing feature fails it.
HOST_PROMISE ?= runc,docker,io,ctr,cri,supervisor,rootless
VM_PROMISE   := cgroup2,runc,crun,docker,swap,spare,io,capabilities,ctr,shims,annotations,cri,python3,node,java,make,supervisor,rootless,nocgroups
# trixie has containerd 1.7.
VM_PROMISE_forky := ,containerd2
# Less than a guest has, so that it is the tests who say where they hang.
TIMEOUT      := 30m

.PHONY: help
help: ## Shows this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Builds static binaries into bin/
	@mkdir -p $(BIN)
	$(BUILD) -o $(BIN)/ ./cmd/...

.PHONY: demo
demo: build ## Stops a runaway agent and shows the verdict; no Docker needed
	@test/demo/demo $(BIN)

.PHONY: test
test: ## Runs every test, the virtual machines included (at most 40 minutes on 2 cores)
	@test/packages
	@$(SUITE) "lint and unit" env AGENTBOX_TEST_REQUIRE=1 $(MAKE) --no-print-directory lint unit
	@$(SUITE) "images"        $(MAKE) --no-print-directory vm-image
	@$(SUITE) "host"          $(MAKE) --no-print-directory host-test
	@$(SUITE) "user-mode Linux" $(MAKE) --no-print-directory vm-uml
	@$(SUITE) "doctor"        $(MAKE) --no-print-directory vm-doctor
	@$(SUITE) "QEMU"          $(MAKE) --no-print-directory vm-test ENGINE=qemu
	@$(SUITE) --summary

.PHONY: unit
unit: ## Unit tests: no root, no containers
	$(GO) test $$($(GO) list $(UNIT) | grep -v -E '/pkg/(fallback|supervise)$$')
	$(GO) test -p 1 ./pkg/fallback ./pkg/supervise # which measure what processes do

.PHONY: lint
lint: ## golangci-lint, pinned in test/tools/go.mod
	$(GO) tool -modfile=test/tools/go.mod golangci-lint run --build-tags e2e ./...

# Compiled once, run on the host and in the guests.
.PHONY: e2e
e2e: build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/ ./test/e2e/attack
	CGO_ENABLED=0 $(GO) test -c -tags e2e -o $(BIN)/e2e.test ./test/e2e

.PHONY: host-test
host-test: e2e ## End-to-end tests on this machine's kernel: runc and Docker by hand
	AGENTBOX_BIN=$(BIN) $(BIN)/e2e.test -test.v -test.timeout $(TIMEOUT) -promise=$(HOST_PROMISE) $(ARGS)

ENGINE ?= uml
# The Debian suite of the guest: forky has the newest engines, trixie older ones.
VM_SUITE ?= forky
# Further flags of test/vm, such as -spare 2G or -cgroup v1.
VM_FLAGS ?=
.PHONY: vm-test
vm-test: e2e vm-guest ## End-to-end tests on a cgroup v2 kernel (ENGINE=uml or qemu, ARGS=-test.run=...)
.PHONY: vm-guest
vm-guest:
	$(GO) run ./test/vm run -engine $(ENGINE) -suite $(VM_SUITE) -no-docker -spare 6G $(VM_FLAGS) -payload bin \
	  -env AGENTBOX_BIN=/payload/bin -env AGENTBOX_DISK_DIR=/data -- \
	  bin/e2e.test -test.v -test.timeout $(TIMEOUT) $(VM_ARGS_$(ENGINE)) $(ARGS)

# The whole of it in user-mode Linux, which has one CPU: three guests, one for what
# goes through the doors of engines other than Docker, and one with systemd. What
# they say comes when they end, one after the other.
VM_DOORS := '^Test(Soak)?(Shim|CRI|Install)'
# What attacks the supervisor needs a CPU or two for the attacker alone: here only what
# it does through each door, all of it on the host and by vm-attack.
VM_ATTACK := '^Test(Soak)?Supervisor(CPU|KillWhile|IsNotSeen|LeavesStopped|WallTime|OtherEnds|KilledAtAny|IO|MemoryBomb|Innocents|ForkBomb)'
.PHONY: vm-uml vm-uml-doors vm-uml-rest vm-uml-systemd
vm-uml: e2e ## All end-to-end tests in user-mode Linux: three guests at once
	@echo "three guests at once; this takes about twelve minutes"
	@$(MAKE) --no-print-directory -j3 -Otarget vm-uml-rest vm-uml-doors vm-uml-systemd
vm-uml-doors:
	@$(MAKE) --no-print-directory vm-guest ENGINE=uml ARGS="-test.run $(VM_DOORS) $(ARGS)"
vm-uml-rest:
	@$(MAKE) --no-print-directory vm-guest ENGINE=uml ARGS="-test.skip $(VM_DOORS)'|'$(VM_ATTACK) $(ARGS)"
vm-uml-systemd:
	@$(MAKE) --no-print-directory vm-systemd-guest
.PHONY: vm-attack
vm-attack: e2e ## All attacks on the supervisor in user-mode Linux: crun without cgroups, rootless runc
	@$(MAKE) --no-print-directory vm-guest ENGINE=uml ARGS="-test.parallel 1 -test.run $(VM_ATTACK) $(ARGS)"
.PHONY: vm-trixie
vm-trixie: ## vm-uml with the engines of Debian 13: containerd 1.7, Docker 26, runc 1.1
	@$(MAKE) --no-print-directory vm-uml VM_SUITE=trixie

# QEMU without KVM is ten times slower: what a second CPU and a stock kernel add.
VM_ARGS_uml  := -promise=$(VM_PROMISE)$(VM_PROMISE_$(VM_SUITE))
VM_ARGS_qemu := -promise=$(VM_PROMISE)$(VM_PROMISE_$(VM_SUITE)),cpus2 -slow 10 -test.run \
  'TestSandboxOutOfMemoryDiesAsOne|TestMemoryHogCannotEscapeIntoSwap|TestSpinnersGet|TestDockerMemoryBomb|TestDockerCPULimitHolds|TestDockerResultOutlives|TestIORequestForAnyDevice|TestIODeviceOfThePolicy|TestIOOperationsHold'

# The same kernel made less of in several ways, and what doctor has to say of it.
VM_DOCTOR := \
  '-cgroup v2|memory=yes,swap=yes,pids=yes,cpu=yes,io=yes' \
  '-kernel-arg cgroup_disable=io|memory=yes,swap=yes,pids=yes,cpu=yes,io=no' \
  '-kernel-arg cgroup_disable=memory|memory=no,swap=no,pids=yes,cpu=yes,io=yes' \
  '-cgroup v1|memory=no,swap=no,pids=yes,cpu=yes,io=yes' \
  '-cgroup hybrid|memory=no,swap=no,pids=yes,cpu=yes,io=yes' \
  '-cgroup none|memory=no,swap=no,pids=no,cpu=no,io=no'
.PHONY: vm-doctor
vm-doctor: e2e ## doctor on kernels and cgroup arrangements of every kind (user-mode Linux)
	@for boot in $(VM_DOCTOR); do \
	  flags=$${boot%%|*}; expect=$${boot##*|}; echo "== $$flags: $$expect"; \
	  $(GO) run ./test/vm run -engine uml -no-docker $$flags -payload bin -env AGENTBOX_BIN=/payload/bin -env AGENTBOX_DISK_DIR=/data -- \
	    bin/e2e.test -test.v -test.timeout $(TIMEOUT) -test.run 'TestDoctor(Says|ExitCode)' -expect $$expect || exit 1; \
	done

VM_SUITES ?= forky trixie
.PHONY: vm-systemd
vm-systemd: e2e ## The systemd cgroup driver, in guests with systemd as init (VM_SUITES=forky: one of them)
	@for suite in $(VM_SUITES); do \
	  echo "== $$suite"; $(MAKE) --no-print-directory vm-systemd-guest VM_SUITE=$$suite || exit 1; \
	done
.PHONY: vm-systemd-guest
vm-systemd-guest:
	$(GO) run ./test/vm run -engine uml -suite $(VM_SUITE) -init systemd -no-docker $(VM_FLAGS) -payload bin \
	  -env AGENTBOX_BIN=/payload/bin -env AGENTBOX_DISK_DIR=/data -- \
	  bin/e2e.test -test.v -test.timeout $(TIMEOUT) -promise=cgroup2,runc,crun,docker,swap,io,ctr,shims,systemd -test.run TestSystemd $(ARGS)

.PHONY: vm-image
vm-image: ## Builds the guest image, or finds it in the cache
	$(GO) run ./test/vm image -suite $(VM_SUITE)

.PHONY: vm-shell
vm-shell: build ## A prompt in a guest with Docker up and bin/ on the PATH
	$(GO) run ./test/vm shell -engine $(ENGINE) -suite $(VM_SUITE) $(VM_FLAGS) -payload bin

.PHONY: fuzz
fuzz: ## Fuzzes every target for FUZZTIME (5m) each
	@test/fuzz $(FUZZTIME)

.PHONY: soak
soak: e2e ## The long counts; hours
	@$(SUITE) "fuzz" $(MAKE) --no-print-directory fuzz
	@$(SUITE) "host rounds" $(MAKE) --no-print-directory host-test TIMEOUT=12h ARGS='-soak -test.run=Soak'
	@$(SUITE) "older engines" $(MAKE) --no-print-directory vm-trixie
	@$(SUITE) "attacks in a guest" $(MAKE) --no-print-directory vm-attack
	@$(SUITE) "user-mode Linux rounds" $(MAKE) --no-print-directory vm-test ENGINE=uml TIMEOUT=12h VM_FLAGS='-timeout 13h' ARGS='-soak -test.run=Soak'
	@$(SUITE) "systemd rounds" $(MAKE) --no-print-directory vm-systemd-guest TIMEOUT=12h VM_FLAGS='-timeout 13h' ARGS='-soak -test.run=TestSystemdShimMemoryBombs'
	@$(SUITE) --summary

.PHONY: bench
bench: build ## What starts and shims cost and how exactly limits hold, in 35 minutes (ARGS=-write: into docs; -only startup, shim, cpu, io, supervisor)
	CGO_ENABLED=0 $(GO) run ./test/bench -bin $(BIN) -engine $(ENGINE) $(ARGS)

.PHONY: install
install: build ## Installs the binaries into PREFIX/bin (/usr/local); engines: agentbox install
	@# Renamed into place: an engine may call them at any moment.
	install -d -m 0755 $(DESTDIR)$(PREFIX)/bin
	@for p in $(PROGRAMS); do \
	  install -m 0755 $(BIN)/$$p $(DESTDIR)$(PREFIX)/bin/.$$p.new && \
	  mv -fT $(DESTDIR)$(PREFIX)/bin/.$$p.new $(DESTDIR)$(PREFIX)/bin/$$p || exit 1; \
	done

.PHONY: uninstall
uninstall: ## Removes the binaries again; before that: agentbox uninstall
	rm -f $(PROGRAMS:%=$(DESTDIR)$(PREFIX)/bin/%)

# make build   the program, bin/ravi
# make run     builds, then runs one sandbox on this repository and shows the patch that comes out
# make test    everything that can be tested here, installing what the tests need
# make soak    messages all the time, and a cluster whose servers are killed: RAVI_SOAK=5m is how long
# make lint    format, vet and staticcheck

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

GO       ?= go
EMBEDDED := cmd/ravi/embedded
# The commit is stamped here; Go's own stamping fails in a checkout that belongs to another user.
# No -trimpath: it would have all of gVisor compiled once more beside what vet and the tests use.
BUILD    := $(GO) build -buildvcs=false
STAMP    := -X ravi/internal/cli.version=$(VERSION) -X ravi/internal/cli.commit=$(COMMIT)

# One setting for building, vetting and testing, so that everything is compiled once. The race detector sets its own.
export CGO_ENABLED = 0

# Compilers and linters are short-lived: collecting less often has them take a third less time, and staticcheck 3.4 GB.
# The tests do without: what they say of memory is meant for the usual setting.
build lint: export GOGC = 400

.PHONY: build run test watched plain deps soak lint clean
.DELETE_ON_ERROR:

# The halves of the tests, and lint when it is asked for along with them, run side by side: much of a test of a sandbox
# is waiting for it.
MAKEFLAGS += --jobs=3

# go build does nothing for what is up to date, so it may always be asked. These programs become part of ravi; they run
# where no library can be counted on, hence static.
PARTS    := ravi-kernel ravi-keeper ravi-relay ravi-gateway ravi-guest

build:
	$(BUILD) -ldflags "-s -w" -o $(EMBEDDED)/ $(addprefix ./cmd/,$(PARTS))
	@cd $(EMBEDDED) && { sha256sum --quiet --check SHA256SUMS >/dev/null 2>&1 || sha256sum $(PARTS) >SHA256SUMS; }
	$(BUILD) -ldflags "-s -w $(STAMP)" -o bin/ravi ./cmd/ravi

run: build
	@scripts/first-run

test: watched plain

watched plain: deps build
	@scripts/test $@

deps:
	@scripts/test-deps

soak: build
	RAVI_SOAK=$${RAVI_SOAK:-5m} RAVI_PROGRAM=$(CURDIR)/bin/ravi $(GO) test ./internal/e2e -run '^TestSoak$$' -count=1 -v -timeout 0

# After the build, which compiles what vet needs as well; and nice, since tests wait for their sandboxes beside it.
lint: build
	@test -z "$$(gofmt -l cmd internal sandbox | tee /dev/stderr)" || { echo 'not formatted: gofmt -w the files above' >&2; exit 1; }
	nice $(GO) vet ./...
	nice $(GO) tool staticcheck ./...

clean:
	rm -rf bin $(addprefix $(EMBEDDED)/,$(PARTS) SHA256SUMS)

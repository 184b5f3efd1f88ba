# make = what one runs before a commit; make check = exactly what .ci/run does.
BASE ?= main
FUZZTIME ?= 30s

all: fmt vet short

fmt:
	gofmt -w $$(git ls-files '*.go')

vet:
	go vet ./...

short:
	go test -short ./...

test:
	go test ./...

check:
	.ci/run

lint:
	go tool -modfile=tools/lint/go.mod staticcheck ./...

generate:
	go generate ./kernel

fuzz:
	FUZZTIME=$(FUZZTIME) .ci/fuzz

# Compares this tree's benchmarks with BASE's; wants benchstat (go install golang.org/x/perf/cmd/benchstat@latest).
bench:
	.ci/bench $(BASE)

build:
	CGO_ENABLED=0 go build -trimpath -o bin/restore ./cmd/restore

.PHONY: all fmt vet short test check lint generate fuzz bench build

# make = what one runs before a commit; make check = exactly what .ci/run does.
BASE ?= main
FUZZTIME ?= 30s
SOAK ?= 1000

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
	go generate ./internal/kernel

fuzz:
	FUZZTIME=$(FUZZTIME) .ci/fuzz

# Requests with faults against a server that is killed and restarted; SOAK=10000 takes a minute or two.
soak:
	RESTORE_SOAK=$(SOAK) go test ./cmd/restore -run '^TestSoak$$' -v -timeout 24h

# Compares this tree's benchmarks with BASE's; wants benchstat (go install golang.org/x/perf/cmd/benchstat@latest).
bench:
	.ci/bench $(BASE)

# What workers, servers and files of requests survive, at full size (docs/scaling.md): an hour and a half.
chaos:
	RESTORE_CHAOS=2000 go test ./internal/fleet -count=1 -run Chaos -v -timeout 12m -parallel 2
	RESTORE_CHAOS=2000 go test ./cmd/restore -count=1 -run BatchKilled -v -timeout 12m
	RESTORE_CHAOS=1 go test ./internal/jobs -count=1 -run KilledAtEveryChange -v -timeout 12m
	RESTORE_CHAOS=20000 go test ./cmd/restore -count=1 -run 'TestChaos$$' -v -timeout 2h

# A server's memory while it answers 100,000 lines with 10 GB of pictures (docs/scaling.md): hours on two cores.
growth:
	RESTORE_GROWTH=100000 go test ./cmd/restore -count=1 -run '^TestGrowth$$' -v -timeout 24h

# The server's page in a browser; wants chromium.
browser:
	cd tools/clients && go test -count=1 ./browser

# The server with OpenAI's library for Go, which takes longer to compile than everything else.
clients:
	cd tools/clients && go test -count=1 ./openaigo

# The chart and the compose file with the libraries of helm, kubectl and compose.
deploy:
	cd tools/deploy && go test -count=1 .

# All of a release in dist/ (docs/releases.md). The first run compiles goreleaser: ten minutes on two cores.
snapshot:
	tools/release/snapshot

# Two releases of the last commit, each compiled anew, byte for byte the same: half an hour on two cores.
reproducible:
	tools/release/reproducible

build:
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...

.PHONY: all fmt vet short test check lint generate fuzz soak bench chaos growth browser clients deploy snapshot reproducible build

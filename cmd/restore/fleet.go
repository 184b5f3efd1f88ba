package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/version"
)

// worker makes a worker of a loaded model. wo has what the caller decides.
func (o *answeringFlags) worker(
	ctx context.Context, c *fleet.Conn, m *restore.Model, wo fleet.WorkerOptions,
) (*fleet.Worker, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	i := m.Info()
	sum := sha256.Sum256(append([]byte(i.ID), cli.MustJSON(i.Settings)...))
	// The worker takes more requests than run, so that pictures are decoded while other requests
	// are answered.
	wo.Service, wo.Key = m, hex.EncodeToString(sum[:8])
	wo.Member = fleet.Member{
		Machine: host, CPU: calibrate.CPU(), Cores: o.Model.Threads,
		Version: version.Module(), Types: types(i.Settings), Capacity: 2 * o.Parallel,
	}
	return c.NewWorker(ctx, wo)
}

// workerQueue is the queue of a worker's model: the fleet's queue limits its requests.
const workerQueue = cli.MaxCount

// types tells apart workers of one model that keep it in other types.
func types(settings map[string]any) string {
	var out []string
	for _, name := range []string{"quant", "encoder-quant", "cache-type"} {
		out = append(out, fmt.Sprint(name, " ", settings[name]))
	}
	return strings.Join(out, ", ")
}

// sharedFeatures are the reduced pictures of a fleet; there are none before open. A model is opened
// before or after its fleet.
type sharedFeatures struct {
	store atomic.Pointer[fleet.Features]
}

// open opens the store of the fleet. Without it workers encode for themselves.
func (s *sharedFeatures) open(ctx context.Context, c *fleet.Conn) {
	store, err := c.Features(ctx)
	if err != nil {
		c.Log().Warn("workers share no pictures", "error", err)
		return
	}
	s.store.Store(store)
}

// Load implements restore.FeatureStore.
func (s *sharedFeatures) Load(key [32]byte, wait bool) ([]byte, bool) {
	if store := s.store.Load(); store != nil {
		return store.Load(key, wait)
	}
	return nil, false
}

// Save implements restore.FeatureStore.
func (s *sharedFeatures) Save(key [32]byte, data []byte) {
	if store := s.store.Load(); store != nil {
		store.Save(key, data)
	}
}

// opened is a service and the functions that close it.
type opened struct {
	service restore.Service
	model   *restore.Model // in this process, nil if workers answer
	ends    []func() error
	// client makes a client of the same workers with an id of its own; nil without a fleet.
	client func(ctx context.Context, id string) (*fleet.Client, error)
}

// then adds a function for close.
func (o *opened) then(end func()) {
	o.ends = append(o.ends, func() error { end(); return nil })
}

// close calls the functions, the last first.
func (o *opened) close() error {
	var all error
	for _, end := range slices.Backward(o.ends) {
		all = errors.Join(all, end())
	}
	o.ends = nil
	return all
}

// place describes a command's part in a fleet.
type place struct {
	name   string // name of its connection
	folder string // for the streams of an embedded server; "" is a temporary one
	client fleet.ClientOptions
	early  bool // without a fleet, begin before all weights of a packed file are checked
}

// openAt opens the service: the model, or the workers of --nats. With an embedded NATS server this
// process's model is one of the workers. out gets the functions that close everything, also after
// an error.
func (o *answeringFlags) openAt(
	ctx context.Context, a *cli.App, log *slog.Logger, n *cli.NatsFlags, out *opened, p place,
) error {
	if n.Embedded() {
		o.shared, o.Queue = new(sharedFeatures), workerQueue
	}
	if n.URL == "" || n.Embedded() {
		m, err := o.open(ctx, a, log)
		if err != nil {
			return err
		}
		out.ends = append(out.ends, m.Close)
		out.service, out.model = m, m
		if !p.early || n.URL != "" {
			if err := m.Checked(ctx); err != nil {
				return err
			}
		}
	}
	if n.URL == "" {
		return nil
	}
	c, end, err := n.Dial(ctx, a, p.name, p.folder, log)
	if err != nil {
		return err
	}
	out.then(end)
	p.client.Model = o.Model.Path
	if out.model != nil {
		o.shared.open(ctx, c)
		key, end, err := o.startWorker(ctx, c, out.model)
		if err != nil {
			return err
		}
		out.then(end)
		p.client.Model = key
	}
	k, err := cli.FleetClient(ctx, a, c, p.client)
	if err != nil {
		return err
	}
	out.then(k.Close)
	out.service = k
	out.client = func(ctx context.Context, id string) (*fleet.Client, error) {
		return cli.FleetClient(ctx, a, c, fleet.ClientOptions{Model: k.Key(), ID: id})
	}
	return nil
}

// checkNATS refuses wrong flags of a fleet and of its workers.
func (o *answeringFlags) checkNATS(n *cli.NatsFlags) error {
	if err := n.Check(o.Flags); err != nil || n.URL == "" || n.Embedded() {
		return err
	}
	return cli.CheckRemote(o.Flags)
}

// drainHere is how long a worker in the process of the NATS server finishes requests at its end.
// All that somebody waits for have ended before, and the results of others would end with the
// server.
const drainHere = time.Millisecond

// startWorker makes a loaded model one of the fleet's workers until end is called.
func (o *answeringFlags) startWorker(
	ctx context.Context, c *fleet.Conn, m *restore.Model,
) (key string, end func(), err error) {
	w, err := o.worker(ctx, c, m, fleet.WorkerOptions{Drain: drainHere})
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			c.Log().Error("worker", "error", err)
		}
	}()
	return w.Key(), func() { cancel(); <-done }, nil
}

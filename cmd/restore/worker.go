package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/version"
)

// workerOptions are the flags of `restore worker`.
type workerOptions struct {
	answering answeringFlags
	nats      cli.NatsFlags
	listen    string
	format    string
	drain     time.Duration
	features  string
}

func newWorker(a *cli.App) *cobra.Command {
	o := new(workerOptions)
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Answer requests that come over NATS",
		Long: `Answer requests for this model from 'restore batch', 'restore serve' and 'restore-lab eval' with --nats, on any number of machines.
These commands set reductions, limits and sampling. Where no NATS server can be reached, the worker waits for one.

SIGTERM and Ctrl-C drain: the worker finishes the requests that it has begun, gives back the others, and exits; a second signal ends it at once.
If a worker ends in any other way, its requests go to other workers. With --listen, /health, /ready and /metrics answer probes over HTTP.`,
		Example: `  restore worker --nats nats://10.0.0.1:4222 -m DIR --quant q4
  restore worker --nats tls://nats.example.com --nats-creds worker.creds`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.nats.Add(fs, "take requests", false)
	o.answering.EngineFlags.Add(fs)
	o.answering.Model.AddResize(fs)
	o.answering.addFolder(fs)
	fs.StringVar(&o.listen, "listen", "",
		"answer /health, /ready and /metrics at this `address`, HOST:PORT or :PORT")
	fs.DurationVar(&o.drain, "drain-timeout", 0,
		"`time` limit for running requests when the worker ends; others then answer them")
	cli.ShowDefault(fs, "drain-timeout", "no limit")
	cli.Within(fs, 0, math.Inf(1), "drain-timeout")
	fs.StringVar(&o.features, "feature-store", "nats",
		"share reduced pictures with the other workers, so that each is encoded once")
	cli.OneOf(fs, "feature-store", "nats", "off")
	fs.StringVar(&o.format, "log-format", "none", "log each request in this format")
	cli.OneOf(fs, "log-format", "none", "text", "json")
	o.answering.Parallel = batchParallel
	fs.Lookup("parallel").DefValue = fmt.Sprint(batchParallel)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

func (o *workerOptions) run(ctx context.Context, a *cli.App) (err error) {
	if err := checkServer(&o.nats, o.answering.Flags); err != nil {
		return err
	}
	if err := o.answering.checkFolder(); err != nil {
		return err
	}
	o.nats.Wait = true // whoever starts both need not start the server first
	log := cli.Warnings(a)
	if o.format != "none" {
		log = logger(o.format, a.Err)
	}
	face, end, err := o.probes(ctx, log)
	if err != nil {
		return err
	}
	defer end()
	c, end, err := o.nats.Dial(ctx, a, "restore worker", "", log)
	if err != nil {
		return err
	}
	defer end()
	if o.features == "nats" {
		o.answering.shared = new(sharedFeatures)
		o.answering.shared.open(ctx, c)
	}
	o.answering.Queue = workerQueue
	m, err := o.answering.open(ctx, a, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.Checked(ctx); err != nil { // others rely on its answers
		return err
	}
	w, err := o.answering.worker(ctx, c, m, fleet.WorkerOptions{Drain: o.drain,
		Done: func(d *fleet.Done) {
			face.Done(string(d.Outcome), d.Answer)
			log.Info("request", "id", d.Request, "outcome", d.Outcome, "ms",
				float64(d.Took.Microseconds())/1000)
		}})
	if err != nil {
		return cli.NatsError(err)
	}
	fw := server.Worker{Model: m.Info().ID, Stats: m.Stats, Busy: w.Busy, Ready: w.Ready}
	for _, o := range fleet.Outcomes {
		fw.Outcomes = append(fw.Outcomes, string(o))
	}
	face.Ready(fw)
	a.Interrupts.Wait()
	a.Note("worker %s answers for %s", w.ID(), m.Info().ID)
	return cli.NatsError(w.Run(ctx))
}

// checkServer refuses flags without a NATS server of its own.
func checkServer(n *cli.NatsFlags, fs *pflag.FlagSet) error {
	switch err := n.Check(fs); {
	case err != nil:
		return err
	case n.URL == "":
		return cli.Flagf("nats", "missing, want the URL of a NATS server")
	case n.Embedded():
		return cli.Flagf("nats",
			"got embedded, which is for clients, want the URL of a NATS server")
	}
	return nil
}

// probes listens at --listen until end is called.
func (o *workerOptions) probes(ctx context.Context, log *slog.Logger) (
	f *server.Face, end func(), err error,
) {
	f = server.NewFace(version.Module(), kernel.Implementation(), log)
	if o.listen == "" {
		return f, func() {}, nil
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, nil, cli.Flagf("listen", "%w", err)
	}
	log.Info("listening", "url", "http://"+l.Addr().String())
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // to the last answer
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Serve(ctx, l); err != nil {
			log.Error("probes", "error", err)
		}
	}()
	return f, func() { cancel(); <-done }, nil
}

// workersOptions are the flags of `restore workers`.
type workersOptions struct {
	nats cli.NatsFlags
	once bool
	json bool
}

func newWorkers(a *cli.App) *cobra.Command {
	o := new(workersOptions)
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the workers that answer over NATS",
		Long: `Show the workers that answer over NATS: machine, processor, model, load, and the time since their last heartbeat. On a
terminal the table is redrawn every second until Ctrl-C.`,
		Example: "  restore workers --nats nats://10.0.0.1:4222",
		Args:    cli.NoArgs,
	}
	fs := cmd.Flags()
	o.nats.Add(fs, "list workers", false)
	fs.BoolVar(&o.once, "once", false, "print the table once")
	fs.BoolVar(&o.json, "json", false, "print one JSON object per worker, once")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkServer(&o.nats, cmd.Flags()); err != nil {
			return err
		}
		return o.run(cmd.Context(), a)
	}
	return cmd
}

func (o *workersOptions) run(ctx context.Context, a *cli.App) error {
	c, end, err := o.nats.Dial(ctx, a, "restore workers", "", cli.Warnings(a))
	if err != nil {
		return err
	}
	defer end()
	m, err := c.Members(ctx)
	if err != nil {
		return cli.NatsError(err)
	}
	if o.json {
		for _, w := range m.List() {
			if _, err := fmt.Fprintf(a.Out, "%s\n", cli.MustJSON(w)); err != nil {
				return err
			}
		}
		return nil
	}
	live := cli.IsTerminal(a.Out) && !o.once
	for {
		if live {
			fmt.Fprint(a.Out, "\x1b[H\x1b[2J")
		}
		if err := printWorkers(a.Out, m.List()); err != nil || !live {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// printWorkers prints one line per worker.
func printWorkers(w io.Writer, list []fleet.Member) error {
	rows := [][]string{
		{
			"worker",
			"machine",
			"cpu",
			"cores",
			"model",
			"fingerprint",
			"busy",
			"held",
			"answers",
			"a second",
			"seen",
		},
	}
	for _, m := range list {
		state := fmt.Sprintf("%d of %d", m.Busy, m.Capacity)
		if m.Draining {
			state += ", ends"
		}
		rows = append(
			rows,
			[]string{
				m.ID,
				m.Machine,
				m.CPU,
				fmt.Sprint(m.Cores),
				m.Model,
				m.Fingerprint,
				state,
				fmt.Sprint(m.Held),
				fmt.Sprint(m.Answers),
				fmt.Sprintf("%.3g", m.Rate),
				fmt.Sprintf("%.1f s ago", max(0, time.Since(m.Said).Seconds())),
			},
		)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no workers")
		return err
	}
	return cli.Table(w, rows)
}

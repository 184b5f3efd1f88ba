package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/local"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/version"
)

// workerOptions are the flags of `restore worker`.
type workerOptions struct {
	answering answeringFlags
	nats      natsFlags
}

func newWorker(a *app) *cobra.Command {
	o := new(workerOptions)
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Answer requests that come over NATS",
		Long: `Answer requests for this model from 'restore batch', 'restore serve' and 'restore eval' with --nats, on any number of machines.
These commands set reductions, limits and sampling.

SIGTERM and Ctrl-C drain: the worker finishes the requests that it has begun, gives back the others, and exits; a second signal ends it at once.
If a worker ends in any other way, its requests go to other workers.`,
		Example: `  restore worker --nats nats://10.0.0.1:4222 -m DIR --quant q4
  restore worker --nats tls://nats.example.com --nats-creds worker.creds`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.nats.add(fs, "take requests", false)
	o.answering.engineFlags.add(fs)
	o.answering.model.addResize(fs)
	o.answering.addFolder(fs)
	o.answering.parallel = batchParallel
	fs.Lookup("parallel").DefValue = fmt.Sprint(batchParallel)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

func (o *workerOptions) run(ctx context.Context, a *app) (err error) {
	switch err := o.nats.check(o.answering.fs); {
	case err != nil:
		return err
	case o.nats.url == "":
		return usagef("--nats: missing, want the URL of a NATS server")
	case o.nats.embedded():
		return usagef("--nats: got embedded, which is for clients, want the URL of a NATS server")
	}
	if err := o.answering.engineFlags.check(); err != nil {
		return err
	}
	if err := o.answering.checkFolder(); err != nil {
		return err
	}
	log := warnings(a)
	c, end, err := o.nats.dial(ctx, a, "restore worker", "", log)
	if err != nil {
		return err
	}
	defer end()
	disk, err := o.answering.disk(log)
	if err != nil {
		return err
	}
	o.answering.queue = 2 * o.answering.parallel
	b, e, err := o.answering.load(
		a,
		log,
		local.Options{Version: version.Module(), Queue: o.answering.queue, Disk: disk,
			Reduction: methods.Given{"base": "holov"}, Decode: imageproc.DefaultDecodeOptions()},
	)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := e.Checked(ctx); err != nil { // others rely on its answers
		return err
	}
	w, err := o.answering.worker(ctx, c, b, 0)
	if err != nil {
		return natsError(err)
	}
	a.interrupts.wait()
	a.note("worker %s answers for %s", w.ID(), b.Info().ID)
	return natsError(w.Run(ctx))
}

// warnings is a log of warnings for the user.
func warnings(a *app) *slog.Logger {
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// workersOptions are the flags of `restore workers`.
type workersOptions struct {
	nats natsFlags
	once bool
	json bool
}

func newWorkers(a *app) *cobra.Command {
	o := new(workersOptions)
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the workers that answer over NATS",
		Long: `Show the workers that answer over NATS: machine, processor, model, load, and the time since their last heartbeat. On a
terminal the table is redrawn every second until Ctrl-C.`,
		Example: "  restore workers --nats nats://10.0.0.1:4222",
		Args:    noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.nats.add(fs, "list workers", false)
	fs.BoolVar(&o.once, "once", false, "print the table once")
	fs.BoolVar(&o.json, "json", false, "print one JSON object per worker, once")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch err := o.nats.check(cmd.Flags()); {
		case err != nil:
			return err
		case o.nats.url == "" || o.nats.embedded():
			return usagef("--nats: got %q, want the URL of a NATS server", o.nats.url)
		}
		return o.run(cmd.Context(), a)
	}
	return cmd
}

func (o *workersOptions) run(ctx context.Context, a *app) error {
	c, end, err := o.nats.dial(ctx, a, "restore workers", "", warnings(a))
	if err != nil {
		return err
	}
	defer end()
	m, err := c.Members(ctx)
	if err != nil {
		return natsError(err)
	}
	if o.json {
		for _, w := range m.List() {
			if _, err := fmt.Fprintf(a.out, "%s\n", mustJSON(w)); err != nil {
				return err
			}
		}
		return nil
	}
	live := isTerminal(a.out) && !o.once
	for {
		if live {
			fmt.Fprint(a.out, "\x1b[H\x1b[2J")
		}
		if err := printWorkers(a.out, m.List()); err != nil || !live {
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
	return columns(w, rows)
}

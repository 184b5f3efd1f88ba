package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet"
)

// workerOptions are the flags of `restore worker`.
type workerOptions struct {
	answering answeringFlags
	nats      cli.NatsFlags
}

func newWorker(a *cli.App) *cobra.Command {
	o := new(workerOptions)
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Answer requests that come over NATS",
		Long: `Answer requests for this model from 'restore batch', 'restore serve' and 'restore-lab eval' with --nats, on any number of machines.
These commands set reductions, limits and sampling.

SIGTERM and Ctrl-C drain: the worker finishes the requests that it has begun, gives back the others, and exits; a second signal ends it at once.
If a worker ends in any other way, its requests go to other workers.`,
		Example: `  restore worker --nats nats://10.0.0.1:4222 -m DIR --quant q4
  restore worker --nats tls://nats.example.com --nats-creds worker.creds`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.nats.Add(fs, "take requests", false)
	o.answering.EngineFlags.Add(fs)
	o.answering.Model.AddResize(fs)
	o.answering.addFolder(fs)
	o.answering.Parallel = batchParallel
	fs.Lookup("parallel").DefValue = fmt.Sprint(batchParallel)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

func (o *workerOptions) run(ctx context.Context, a *cli.App) (err error) {
	switch err := o.nats.Check(o.answering.Flags); {
	case err != nil:
		return err
	case o.nats.URL == "":
		return cli.Flagf("nats", "missing, want the URL of a NATS server")
	case o.nats.Embedded():
		return cli.Flagf("nats",
			"got embedded, which is for clients, want the URL of a NATS server")
	}
	if err := o.answering.EngineFlags.Check(); err != nil {
		return err
	}
	if err := o.answering.checkFolder(); err != nil {
		return err
	}
	log := cli.Warnings(a)
	c, end, err := o.nats.Dial(ctx, a, "restore worker", "", log)
	if err != nil {
		return err
	}
	defer end()
	o.answering.Queue = 2 * o.answering.Parallel
	m, err := o.answering.open(ctx, a, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.Checked(ctx); err != nil { // others rely on its answers
		return err
	}
	w, err := o.answering.worker(ctx, c, m, 0)
	if err != nil {
		return cli.NatsError(err)
	}
	a.Interrupts.Wait()
	a.Note("worker %s answers for %s", w.ID(), m.Info().ID)
	return cli.NatsError(w.Run(ctx))
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
	fs.SortFlags = false
	o.nats.Add(fs, "list workers", false)
	fs.BoolVar(&o.once, "once", false, "print the table once")
	fs.BoolVar(&o.json, "json", false, "print one JSON object per worker, once")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch err := o.nats.Check(cmd.Flags()); {
		case err != nil:
			return err
		case o.nats.URL == "" || o.nats.Embedded():
			return cli.Flagf("nats", "got %q, want the URL of a NATS server", o.nats.URL)
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

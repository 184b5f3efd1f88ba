package main

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet"
)

// evalFleet asks workers over NATS for benchmarks and drawn scenes.
type evalFleet struct {
	client    *fleet.Client
	system    string
	reduction *restore.Reduction
}

// fleetPictures is how many pictures workers are asked about at once by default.
const fleetPictures = 64

// overNATS connects to the workers of --nats.
func (o *benchmarkOptions) overNATS(
	ctx context.Context, a *cli.App, system string,
) (_ eval.Answerer, done func(), err error) {
	if o.server != "" {
		return nil, nil, cli.Flagf("openai", "got %s together with --nats, want one of them",
			o.server)
	}
	e, done, err := newEvalFleet(ctx, a, &o.nats, &o.reduction, o.model.Path, o.mixed)
	if err != nil {
		return nil, nil, err
	}
	if e.system = system; !o.fs.Changed("parallel") {
		o.parallel = fleetPictures
	}
	return e, done, nil
}

// newEvalFleet connects to the workers of a model; mixed accepts workers that may differ in the
// last bits.
func newEvalFleet(
	ctx context.Context, a *cli.App, n *cli.NatsFlags, r *cli.ReductionFlags, model string,
	mixed bool,
) (_ *evalFleet, done func(), err error) {
	if n.Embedded() {
		return nil, nil, cli.Flagf("nats",
			"got embedded, want the URL of a NATS server with workers")
	}
	if err := cli.CheckRemote(r.Flags); err != nil {
		return nil, nil, err
	}
	given, _, err := r.Reduction()
	if err != nil {
		return nil, nil, err
	}
	c, end, err := n.Dial(ctx, a, "restore-lab eval", "", cli.Warnings(a))
	if err != nil {
		return nil, nil, err
	}
	k, err := cli.FleetClient(ctx, a, c, fleet.ClientOptions{Model: model, Same: !mixed})
	if err != nil {
		end()
		return nil, nil, err
	}
	return &evalFleet{client: k, reduction: given}, func() { k.Close(); end() }, nil
}

// unreduced asks the same workers without a reduction.
func (e *evalFleet) unreduced() *evalFleet {
	full := *e
	full.reduction = nil
	return &full
}

// Settings implements eval.Answerer.
func (e *evalFleet) Settings() map[string]any {
	i := e.client.Info()
	return map[string]any{"model": i.ID, "digest": i.Digest, "fingerprint": i.Fingerprint,
		"system": e.system, "reduction": e.reduction}
}

// Answer implements eval.Answerer.
func (e *evalFleet) Answer(
	ctx context.Context, questions []*eval.Question, done func(i int, a eval.Answer) error,
) error {
	var pictures []*restore.Picture
	for i := range questions[0].Images {
		data, err := questions[0].Images[i].Bytes()
		if err != nil {
			return err
		}
		p, err := restore.NewPicture(data, nil)
		if err != nil {
			return questions[0].Images[i].Error(err)
		}
		pictures = append(pictures, p)
	}
	answers, err := e.all(ctx, len(questions), func(i int) (*restore.Request, string) {
		q := questions[i]
		return e.request(q, pictures), fmt.Sprint("question ", q.ID)
	})
	if err != nil {
		return err
	}
	for i, a := range answers {
		if err := done(i, evalAnswer(a)); err != nil {
			return err
		}
	}
	return nil
}

// all asks n requests about the same pictures. It asks the first one alone, so that the others find
// its results in the caches.
func (e *evalFleet) all(
	ctx context.Context, n int, request func(i int) (r *restore.Request, name string),
) ([]*restore.Answer, error) {
	answers, failed := make([]*restore.Answer, n), make([]error, n)
	one := func(i int) {
		r, name := request(i)
		j, err := e.client.Submit(ctx, r)
		if err == nil {
			answers[i], err = j.Answer()
		}
		if err != nil {
			failed[i] = fmt.Errorf("%s: %w", name, err)
		}
	}
	if one(0); failed[0] != nil {
		return nil, failed[0]
	}
	var rest sync.WaitGroup
	for i := 1; i < n; i++ {
		rest.Go(func() { one(i) })
	}
	rest.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// request asks one question, with greedy decoding.
func (e *evalFleet) request(q *eval.Question, pictures []*restore.Picture) *restore.Request {
	return &restore.Request{Prompt: q.Text, System: e.system, Pictures: pictures,
		MaxTokens: q.MaxTokens, Reduction: e.reduction}
}

// evalAnswer converts an answer for records, without the time in the queue.
func evalAnswer(a *restore.Answer) eval.Answer {
	t := &a.Timings
	out := eval.Answer{Text: a.Text, Finish: string(a.Finish),
		Usage: eval.Usage{Prompt: a.Usage.Prompt, Cached: a.Usage.Cached,
			Tokens: a.Usage.Generated},
		Seconds: eval.Seconds{
			Prepare:    t.Prepare.Seconds(),
			Encode:     t.Encode.Seconds(),
			Select:     t.Select.Seconds(),
			Merge:      t.Merge.Seconds(),
			Prefill:    t.Prefill.Seconds(),
			FirstToken: (t.FirstToken - t.Queue).Seconds(),
			Decode:     t.Decode.Seconds(),
		},
	}
	var v api.VisualTokens
	for i := range a.Pictures {
		v.Add(&a.Pictures[i])
	}
	out.Before, out.After = v.Before, int(math.Round(v.Read()))
	return out
}

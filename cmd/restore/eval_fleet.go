package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/restore-vlm/restore/eval"
	asked "github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
)

// evalFleet asks workers over NATS, as benchmarks ask.
type evalFleet struct {
	client    *fleet.Client
	system    string
	reduction json.RawMessage
}

// pictures that are asked about at once, where workers answer and nobody says how many.
const fleetPictures = 64

// overNATS connects to the workers of --nats.
func (o *benchmarkOptions) overNATS(
	ctx context.Context, a *app, system string,
) (_ eval.Answerer, done func(), err error) {
	switch {
	case o.nats.embedded():
		return nil, nil, usagef("--nats: got embedded, want the URL of a NATS server with workers")
	case o.server != "":
		return nil, nil, usagef("--openai: got %s beside --nats, want one of them", o.server)
	}
	if err := checkRemote(o.fs); err != nil {
		return nil, nil, err
	}
	typed, twins, err := o.reduction.sources()
	if err != nil {
		return nil, nil, err
	}
	given := methods.Merge(typed, twins, o.reduction.defaults)
	if m, err := methods.Lookup(o.reduction.base()); err == nil && m.Draws {
		given["seed"] = o.reduction.seed
	}
	c, end, err := o.nats.dial(ctx, a, "restore eval", "", warnings(a))
	if err != nil {
		return nil, nil, err
	}
	whole := imageproc.DefaultDecodeOptions()
	plain := defaults{
		EXIF:      whole.EXIF,
		MaxPixels: whole.Limits.MaxPixels,
		MaxBytes:  whole.Limits.MaxBytes,
	}
	k, err := plain.client(
		ctx,
		a,
		c,
		fleet.ClientOptions{Model: o.model.files.Model, Same: !o.mixed},
	)
	if err != nil {
		end()
		return nil, nil, err
	}
	if !o.fs.Changed("parallel") {
		o.parallel = fleetPictures
	}
	return &evalFleet{k, system, mustJSON(given)}, func() { k.Close(); end() }, nil
}

// Settings implements eval.Answerer.
func (e *evalFleet) Settings() map[string]any {
	i := e.client.Info()
	return map[string]any{"model": i.ID, "digest": i.Digest, "fingerprint": i.Fingerprint,
		"system": e.system, "reduction": e.reduction}
}

// Answer implements eval.Answerer. The first question is asked alone, so that the others find
// its work done.
func (e *evalFleet) Answer(
	ctx context.Context,
	questions []*eval.Question,
	tokens int,
	done func(i int, a eval.Answer) error,
) error {
	var pictures []asked.Part
	for i := range questions[0].Images {
		data, err := questions[0].Images[i].Bytes()
		if err != nil {
			return err
		}
		path := fmt.Sprintf("images[%d]", i)
		pictures = append(pictures, asked.Part{Picture: &asked.Picture{Data: data, Path: path}})
	}
	one := func(i int) (*asked.Answer, error) {
		j, err := e.client.Submit(ctx, e.request(questions[i], pictures, tokens))
		if err == nil {
			var a *asked.Answer
			if a, err = j.Answer(); err == nil {
				return a, nil
			}
		}
		return nil, fmt.Errorf("question %d: %w", questions[i].ID, err)
	}
	answers, failed := make([]*asked.Answer, len(questions)), make([]error, len(questions))
	if answers[0], failed[0] = one(0); failed[0] != nil {
		return failed[0]
	}
	var all sync.WaitGroup
	for i := 1; i < len(questions); i++ {
		all.Go(func() { answers[i], failed[i] = one(i) })
	}
	all.Wait()
	for i, a := range answers {
		if failed[i] != nil {
			return failed[i]
		}
		if err := done(i, evalAnswer(a)); err != nil {
			return err
		}
	}
	return nil
}

// request asks one question, greedily.
func (e *evalFleet) request(q *eval.Question, pictures []asked.Part, tokens int) *asked.Request {
	greedy := 0.0
	r := &asked.Request{MaxTokens: tokens, Sampling: asked.Sampling{Temperature: &greedy},
		Reduction: asked.Layer{Object: e.reduction, Path: "restore"}}
	if e.system != "" {
		r.Messages = append(
			r.Messages,
			asked.Message{Role: asked.System, Parts: []asked.Part{{Text: e.system}}},
		)
	}
	parts := append(pictures[:len(pictures):len(pictures)], asked.Part{Text: q.Text})
	r.Messages = append(r.Messages, asked.Message{Role: asked.User, Parts: parts})
	return r
}

// evalAnswer is an answer as records keep it.
func evalAnswer(a *asked.Answer) eval.Answer {
	t := &a.Timings
	out := eval.Answer{Text: a.Text, Finish: string(a.Finish),
		Usage: eval.Usage{Prompt: a.Prompt, Cached: a.Cached, Tokens: a.Completion},
		Seconds: eval.Seconds{
			Prepare:    t.Prepare.Seconds(),
			Encode:     t.Encode.Seconds(),
			Select:     t.Select.Seconds(),
			Merge:      t.Merge.Seconds(),
			Prefill:    t.Prefill.Seconds(),
			FirstToken: t.FirstToken.Seconds(),
			Decode:     t.Decode.Seconds(),
		},
	}
	for _, p := range a.Pictures {
		out.Before += p.Tokens
		out.After += p.Kept + p.Merged
	}
	return out
}

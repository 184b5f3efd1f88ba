package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"math"
	"strconv"
	"sync"

	"github.com/restore-vlm/restore/eval"
	asked "github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/scenebench"
)

// evalFleet asks workers over NATS for benchmarks and drawn scenes.
type evalFleet struct {
	client    *fleet.Client
	system    string
	reduction json.RawMessage
}

// fleetPictures is how many pictures workers are asked about at once by default.
const fleetPictures = 64

// overNATS connects to the workers of --nats.
func (o *benchmarkOptions) overNATS(
	ctx context.Context, a *app, system string,
) (_ eval.Answerer, done func(), err error) {
	if o.server != "" {
		return nil, nil, usagef("--openai: got %s together with --nats, want one of them", o.server)
	}
	e, done, err := newEvalFleet(ctx, a, &o.nats, &o.reduction, o.model.files.Model, o.mixed)
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
	ctx context.Context, a *app, n *natsFlags, r *reductionFlags, model string, mixed bool,
) (_ *evalFleet, done func(), err error) {
	if n.embedded() {
		return nil, nil, usagef("--nats: got embedded, want the URL of a NATS server with workers")
	}
	if err := checkRemote(r.fs); err != nil {
		return nil, nil, err
	}
	typed, env, err := r.sources()
	if err != nil {
		return nil, nil, err
	}
	given := methods.Merge(typed, env, r.defaults)
	if m, err := methods.Lookup(r.base()); err == nil && m.Draws {
		given["seed"] = r.seed
	}
	c, end, err := n.dial(ctx, a, "restore eval", "", warnings(a))
	if err != nil {
		return nil, nil, err
	}
	whole := imageproc.DefaultDecodeOptions()
	plain := defaults{
		EXIF:      whole.EXIF,
		MaxPixels: whole.Limits.MaxPixels,
		MaxBytes:  whole.Limits.MaxBytes,
	}
	k, err := plain.client(ctx, a, c, fleet.ClientOptions{Model: model, Same: !mixed})
	if err != nil {
		end()
		return nil, nil, err
	}
	return &evalFleet{client: k, reduction: mustJSON(given)}, func() { k.Close(); end() }, nil
}

// Settings implements eval.Answerer.
func (e *evalFleet) Settings() map[string]any {
	i := e.client.Info()
	return map[string]any{"model": i.ID, "digest": i.Digest, "fingerprint": i.Fingerprint,
		"system": e.system, "reduction": e.reduction}
}

// Answer implements eval.Answerer.
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
	answers, err := e.all(ctx, len(questions), func(i int) (*asked.Request, string) {
		q := questions[i]
		return e.request(q.Text, pictures, tokens, e.reduction), fmt.Sprint("question ", q.ID)
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
	ctx context.Context, n int, request func(i int) (r *asked.Request, name string),
) ([]*asked.Answer, error) {
	answers, failed := make([]*asked.Answer, n), make([]error, n)
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
func (e *evalFleet) request(
	text string, pictures []asked.Part, tokens int, reduction json.RawMessage,
) *asked.Request {
	greedy := 0.0
	r := &asked.Request{MaxTokens: tokens, Sampling: asked.Sampling{Temperature: &greedy},
		Reduction: asked.Layer{Object: reduction, Path: "restore"}}
	if e.system != "" {
		r.Messages = append(r.Messages,
			asked.Message{Role: asked.System, Parts: []asked.Part{{Text: e.system}}})
	}
	parts := append(pictures[:len(pictures):len(pictures)], asked.Part{Text: text})
	r.Messages = append(r.Messages, asked.Message{Role: asked.User, Parts: parts})
	return r
}

// scenes implements scenebench.Ask.
func (e *evalFleet) scenes(
	ctx context.Context, pic *imageproc.Picture, questions []scene.Question,
) (full, reduced []scenebench.Reply, err error) {
	im := image.NewNRGBA(image.Rect(0, 0, pic.Width, pic.Height))
	for i := range pic.Width * pic.Height {
		copy(im.Pix[4*i:], pic.Pix[3*i:3*i+3])
		im.Pix[4*i+3] = 255
	}
	var file bytes.Buffer
	if err := png.Encode(&file, im); err != nil {
		return nil, nil, err
	}
	picture := []asked.Part{
		{Picture: &asked.Picture{Data: file.Bytes(), Path: "picture"}},
	}
	ask := func(reduction json.RawMessage) (replies []scenebench.Reply, err error) {
		answers, err := e.all(ctx, len(questions), func(i int) (*asked.Request, string) {
			q := questions[i]
			return e.request(q.Text, picture, scenebench.Enough(q), reduction),
				strconv.Quote(q.Text)
		})
		for _, a := range answers {
			replies = append(replies, scenebench.ReplyOf(a.Text, a.Finish == asked.Stop))
		}
		return replies, err
	}
	if full, err = ask(json.RawMessage(`{"base":"none"}`)); err != nil {
		return nil, nil, err
	}
	reduced, err = ask(e.reduction)
	return full, reduced, err
}

// evalAnswer converts an answer for records, without the time in the queue.
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
			FirstToken: (t.FirstToken - t.Queue).Seconds(),
			Decode:     t.Decode.Seconds(),
		},
	}
	var v asked.VisualTokens
	for _, p := range a.Pictures {
		v.Add(p.Tokens, p.Kept, p.Merged, p.Mean)
	}
	out.Before, out.After = v.Before, int(math.Round(v.Read()))
	return out
}

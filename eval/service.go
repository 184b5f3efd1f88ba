package eval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/restore-vlm/restore"
)

// Service asks a [restore.Service]: a model that is loaded in this program, or one elsewhere.
type Service struct {
	Model restore.Service
	// Reduction is how pictures are reduced; nil reads every token.
	Reduction *restore.Reduction
	// System is the system prompt before each question; "": the template's default.
	System string
}

// Settings implements Answerer. They name the model by its files, its weights in memory and the
// options that answers depend on, and not the program's version: a newer one continues a run.
func (s *Service) Settings() map[string]any {
	i := s.Model.Info()
	out := map[string]any{}
	maps.Copy(out, i.Settings)
	delete(out, "version")
	for name, v := range map[string]any{
		"model": i.ID, "digest": i.Digest, "architecture": i.Architecture, "kernel": i.Kernel,
		"weights": i.Weights, "system": s.System, "reduction": s.Reduction,
	} {
		out[name] = v
	}
	if s.unreduced() { // in whatever words, so that these runs share their answers
		out["reduction"] = nil
		return out
	}
	for name, v := range s.Reduction.Options {
		if file, ok := v.([]byte); ok { // which the reduction's JSON leaves out
			sum := sha256.Sum256(file)
			out[name] = hex.EncodeToString(sum[:])
		}
	}
	return out
}

// unreduced reports whether every token is read.
func (s *Service) unreduced() bool {
	if s.Reduction == nil {
		return true
	}
	base, given := s.Reduction.Options["base"].(string)
	if !given {
		base = s.Reduction.Base
	}
	return base == "" || base == "none"
}

// Answer implements Answerer. The first question reads the pictures; then the others decode
// together and use the model's cache of them.
func (s *Service) Answer(
	ctx context.Context, asked []*Question, done func(i int, a Answer) error,
) error {
	var pictures []*restore.Picture
	for i := range asked[0].Images {
		p, err := asked[0].Images[i].Picture()
		if err != nil {
			return err
		}
		pictures = append(pictures, p)
	}
	var mu sync.Mutex
	return each(ctx, len(asked), func(ctx context.Context, i int) error {
		a, err := s.ask(ctx, asked[i], pictures)
		if err != nil {
			return fmt.Errorf("question %d: %w", asked[i].ID, err)
		}
		mu.Lock()
		defer mu.Unlock()
		return done(i, answerOf(a))
	})
}

// together is how many questions are asked at once: as many as the engine decodes together.
const together = 8

// each calls ask for the questions 0 … n-1. The first runs alone: it reads the pictures, and its
// times are only its own. The others then run together, up to eight at once, and use what the model
// keeps of the first. The first error cancels the others and is returned.
func each(ctx context.Context, n int, ask func(ctx context.Context, i int) error) error {
	if n == 0 {
		return nil
	}
	if err := ask(ctx, 0); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	for i := 1; i < n; i++ {
		group.Go(func() error { return ask(ctx, i) })
	}
	return group.Wait()
}

// ask asks one question, with greedy decoding.
func (s *Service) ask(
	ctx context.Context, q *Question, pictures []*restore.Picture,
) (*restore.Answer, error) {
	j, err := s.Model.Submit(ctx, &restore.Request{Prompt: q.Text, System: s.System,
		Pictures: pictures, Reduction: s.Reduction, MaxTokens: q.MaxTokens})
	if err != nil {
		return nil, err
	}
	return j.Answer()
}

// answerOf converts an answer for records, without the time in the queue.
func answerOf(a *restore.Answer) Answer {
	t := &a.Timings
	out := Answer{
		Text: a.Text, Finish: string(a.Finish),
		Usage: Usage{Prompt: a.Usage.Prompt, Cached: a.Usage.Cached, Tokens: a.Usage.Generated},
		Seconds: Seconds{
			Prepare: t.Prepare.Seconds(), Encode: t.Encode.Seconds(),
			Select: t.Select.Seconds(), Merge: t.Merge.Seconds(),
			Prefill: t.Prefill.Seconds(), FirstToken: (t.FirstToken - t.Queue).Seconds(),
			Decode: t.Decode.Seconds(),
		},
	}
	read := 0.
	for i := range a.Pictures {
		p := &a.Pictures[i]
		out.Before += p.Tokens
		read += p.Read()
	}
	out.After = int(math.Round(read))
	if len(a.Pictures) > 0 {
		out.Reduction = a.Pictures[0].Parameters
	}
	return out
}

package eval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"sync"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/questions"
)

// Service asks a [restore.Service]: a model that is loaded in this program, or one elsewhere.
type Service struct {
	Model restore.Service
	// Reduction is how pictures are reduced; nil reads every token.
	Reduction *restore.Reduction
	// System is the system prompt before each question; "": the template's default.
	System string
}

// Settings implements Answerer.
func (s *Service) Settings() map[string]any {
	i := s.Model.Info()
	out := map[string]any{"model": i.ID, "digest": i.Digest, "fingerprint": i.Fingerprint,
		"system": s.System, "reduction": s.Reduction}
	if s.Reduction == nil {
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

// Answer implements Answerer. The first question reads the pictures; then the others decode
// together and use the model's cache of them.
func (s *Service) Answer(
	ctx context.Context, asked []*Question, done func(i int, a Answer) error,
) error {
	var pictures []*restore.Picture
	for i := range asked[0].Images {
		image := &asked[0].Images[i]
		data, err := image.Bytes()
		if err != nil {
			return err
		}
		p, err := restore.NewPicture(data, nil)
		if err != nil {
			return image.Error(err)
		}
		pictures = append(pictures, p)
	}
	var mu sync.Mutex
	return questions.Each(ctx, len(asked), func(ctx context.Context, i int) error {
		a, err := s.ask(ctx, asked[i], pictures)
		if err != nil {
			return fmt.Errorf("question %d: %w", asked[i].ID, err)
		}
		mu.Lock()
		defer mu.Unlock()
		return done(i, answerOf(a))
	})
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

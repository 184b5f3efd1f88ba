package eval

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/questions"
)

// Local asks a model that is loaded in this program.
type Local struct {
	Model *restore.Model
	// Reduction is how pictures are reduced; nil reads every token.
	Reduction *restore.Reduction
	// System is the system prompt before each question; "": the template's default.
	System string
}

// Settings implements Answerer.
func (l *Local) Settings() map[string]any {
	info := l.Model.Info()
	out := map[string]any{
		"model": info.Name, "architecture": info.Architecture, "params": info.Params,
		"bytes": info.Bytes, "kernel": info.Kernel, "system": l.System,
	}
	if l.Reduction != nil {
		out["reduction"] = l.Reduction
	}
	return out
}

// Answer implements Answerer. The first question reads the pictures; then the others decode
// together and use the model's cache of them.
func (l *Local) Answer(
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
	ask := func(ctx context.Context, i int) error {
		a, err := l.Model.Ask(ctx, restore.Request{
			Prompt: asked[i].Text, System: l.System, Pictures: pictures,
			Reduction: l.Reduction, MaxTokens: asked[i].MaxTokens,
		})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		return done(i, l.answer(a))
	}
	return questions.Each(ctx, len(asked), ask)
}

func (l *Local) answer(a *restore.Answer) Answer {
	out := Answer{Text: a.Text, Finish: string(a.Finish), Usage: Usage{
		Prompt: a.Usage.Prompt, Cached: a.Usage.Cached, Tokens: a.Usage.Generated}}
	read := 0.
	for _, p := range a.Pictures {
		out.Before += p.Tokens
		read += p.Read()
	}
	out.After = int(math.Round(read))
	t := &a.Timings
	seconds := func(d time.Duration) float64 { return d.Seconds() }
	out.Seconds = Seconds{seconds(t.Prepare), seconds(t.Encode), seconds(t.Select),
		seconds(t.Merge), seconds(t.Prefill), seconds(t.FirstToken), seconds(t.Decode)}
	return out
}

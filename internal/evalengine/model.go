// Package evalengine connects benchmarks to the engine.
package evalengine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/questions"
)

// Model is an engine with a reduction, for benchmarks.
type Model struct {
	Engine    *engine.Engine
	Reduction methods.Options
	System    string // system prompt of each question; "" means the template's
	// Opened records the model's files and options, for the settings of runs.
	Opened map[string]any
	// Pictures caches encoded pictures across runs; nil caches none.
	Pictures *Pictures
}

// Settings implements [eval.Answerer].
func (m *Model) Settings() map[string]any {
	all := maps.Clone(m.Opened)
	all["system"], all["reduction"] = m.System, reductionSettings(m.Reduction)
	return all
}

// reductionSettings are the settings of a reduction.
func reductionSettings(how methods.Options) map[string]any {
	if how.Base == "" || how.Base == "none" {
		return map[string]any{"base": "none"}
	}
	out := map[string]any{"base": how.Base, "restore": how.Restore}
	all := reflect.ValueOf(how)
	for i := range all.NumField() {
		name, v := strings.ToLower(all.Type().Field(i).Name), all.Field(i)
		if _, done := out[name]; !done && !v.IsZero() {
			out[name] = v.Interface()
		}
	}
	return out
}

// Answer implements [eval.Answerer]. Pictures are encoded once. The first question runs alone, so
// that its times are only its own. The others decode together, and reuse its keys and values if the
// reduction does not depend on the question.
func (m *Model) Answer(
	ctx context.Context, asked []*eval.Question, done func(i int, a eval.Answer) error,
) error {
	start := time.Now()
	encoded, err := m.Encode(ctx, asked[0].Images)
	if err != nil {
		return err
	}
	encoding := time.Since(start).Seconds()
	var mu sync.Mutex
	ask := func(ctx context.Context, i int) error {
		a, err := m.Engine.Ask(ctx, engine.Request{
			Prompt: asked[i].Text, System: m.System, Encoded: encoded, Reduce: m.Reduction,
			MaxTokens: asked[i].MaxTokens,
		})
		if err != nil {
			return fmt.Errorf("question %d: %w", asked[i].ID, err)
		}
		if a.Finish == engine.FinishCancelled {
			return context.Cause(ctx)
		}
		out, err := answerOf(a)
		if err != nil {
			return err
		}
		if i == 0 { // this question's times include the encoding
			out.Seconds.Encode += encoding
			out.Seconds.FirstToken += encoding
		}
		mu.Lock()
		defer mu.Unlock()
		return done(i, out)
	}
	return questions.Each(ctx, len(asked), ask)
}

// Encode encodes the pictures of a question; nil without any.
func (m *Model) Encode(ctx context.Context, images []eval.Image) (*engine.Encoded, error) {
	if len(images) == 0 {
		return nil, nil
	}
	if m.Pictures != nil {
		if encoded := m.Pictures.get(images); encoded != nil {
			return encoded, nil
		}
	}
	pictures, err := Decode(images)
	if err != nil {
		return nil, err
	}
	encoded, err := m.Engine.Encode(ctx, pictures)
	if err == nil && m.Pictures != nil {
		m.Pictures.put(images, encoded)
	}
	return encoded, err
}

// Decode decodes pictures. Its errors name the picture's source.
func Decode(images []eval.Image) ([]*imageproc.Picture, error) {
	var out []*imageproc.Picture
	for i := range images {
		data, err := images[i].Bytes()
		if err != nil {
			return nil, err
		}
		p, err := imageproc.Decode(data, images[i].Name, imageproc.DefaultDecodeOptions())
		if err != nil {
			return nil, images[i].Error(err)
		}
		out = append(out, p)
	}
	return out, nil
}

// answerOf converts an answer of the engine for records.
func answerOf(a *engine.Answer) (eval.Answer, error) {
	r, read := &a.Report, 0.
	var reduction []byte
	if len(r.Images) > 0 {
		var err error
		if reduction, err = json.Marshal(r.Options); err != nil {
			return eval.Answer{}, err
		}
	}
	for i := range r.Images {
		read += r.Images[i].Read()
	}
	return eval.Answer{
		Text: a.Text, Finish: a.Finish,
		Usage: eval.Usage{
			Before: r.Before, After: int(math.Round(read)),
			Prompt: r.PromptTokens, Cached: r.CachedTokens, Tokens: r.GeneratedTokens,
		},
		Seconds: eval.Seconds{
			Prepare: r.Prepare.Seconds(), Encode: r.Encode.Seconds(),
			Select: r.Select.Seconds(), Merge: r.Merge.Seconds(),
			Prefill: r.Prefill.Seconds(), FirstToken: r.FirstToken.Seconds(),
			Decode: r.Decode.Seconds(),
		},
		Reduction: reduction,
	}, nil
}

// Pictures caches the Most encoded pictures that were used last, for several answerers or runs over
// the same pictures.
type Pictures struct {
	Most int

	mu     sync.Mutex
	cached []cachedPictures // the last used one is the last
}

type cachedPictures struct {
	name    string
	encoded *engine.Encoded
}

func (p *Pictures) get(images []eval.Image) *engine.Encoded {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := nameOf(images)
	i := slices.IndexFunc(p.cached, func(c cachedPictures) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	found := p.cached[i]
	p.cached = append(slices.Delete(p.cached, i, i+1), found)
	return found.encoded
}

func (p *Pictures) put(images []eval.Image, s *engine.Encoded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cached = append(p.cached, cachedPictures{nameOf(images), s})
	if len(p.cached) > p.Most {
		p.cached = slices.Delete(p.cached, 0, 1)
	}
}

func nameOf(images []eval.Image) string {
	var names []string
	for _, i := range images {
		names = append(names, i.Name)
	}
	return strings.Join(names, "\x00")
}

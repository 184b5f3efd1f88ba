// Package local answers the requests of package ask with an engine in this process.
//
//	local.go      requests and answers
//	reduction.go  parameters of reductions: picture, detail, body, server
//	schema.go     grammars of JSON schemas, compiled once
//	info.go       the model's description
package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/diskcache"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/internal/wire"
	"github.com/restore-vlm/restore/reduce"
)

// Options configure a Backend.
type Options struct {
	Version string
	Aliases []string
	Queue   int // most requests that wait
	// Settings are the server.Info's.
	Settings map[string]any

	Sampling  sample.Options // default for requests
	MaxTokens int            // default for requests; 0: up to the context's end
	Reduction methods.Given  // default for requests

	Decode imageproc.DecodeOptions // for pictures
	Disk   *diskcache.Cache        // nil: none
}

// Backend answers requests with an engine.
type Backend struct {
	e    *engine.Engine
	o    Options
	tok  *tokenizer.Tokenizer
	info server.Info
	fact *grammars

	mu   sync.Mutex
	took time.Duration // recent time of a request
}

// New returns a backend over e. The caller still owns e, which must have a tokenizer.
func New(e *engine.Engine, o Options) (*Backend, error) {
	if e.Tokenizer() == nil {
		return nil, fmt.Errorf("local: %s: has no tokenizer, which a server needs", e.Info().Name)
	}
	b := &Backend{e: e, o: o, tok: e.Tokenizer()}
	b.info = b.describe()
	b.fact = newGrammars(b.tok, e.Info().End)
	return b, nil
}

// With returns a backend over the same engine with other defaults. It ignores o's aliases, queue
// and disk, and uses b's.
func (b *Backend) With(o Options) *Backend {
	o.Aliases, o.Queue, o.Settings, o.Disk = b.o.Aliases, b.o.Queue, b.o.Settings, b.o.Disk
	n := &Backend{e: b.e, o: o, tok: b.tok, fact: b.fact}
	n.info = n.describe()
	return n
}

// Info implements server.Backend.
func (b *Backend) Info() *server.Info { return &b.info }

// Submit implements server.Backend.
func (b *Backend) Submit(ctx context.Context, r *ask.Request) (server.Job, error) {
	q, pics, err := b.request(r)
	if err != nil {
		return nil, err
	}
	j, err := b.e.Submit(ctx, q)
	if errors.Is(err, errs.ErrQueueFull) {
		return nil, b.full()
	}
	if err != nil {
		return nil, b.located(err, r, pics)
	}
	out := &job{b: b, j: j, r: r}
	if q.Sample.Temp > 0 {
		out.seed = &q.Sample.Seed
	}
	return out, nil
}

// Count implements server.Backend.
func (b *Backend) Count(ctx context.Context, r *ask.Request) (*ask.Count, error) {
	q, pics, err := b.request(r)
	if err != nil {
		return nil, err
	}
	report, err := b.e.Count(ctx, q)
	if errors.Is(err, errs.ErrQueueFull) {
		return nil, b.full()
	}
	if err != nil {
		return nil, b.located(err, r, pics)
	}
	c := count(report, r.Groups)
	return &c, nil
}

// full returns the error of a full queue, with an estimate of the wait.
func (b *Backend) full() error {
	s := b.e.Stats()
	b.mu.Lock()
	took := b.took
	b.mu.Unlock()
	wait := time.Duration(float64(took) * float64(s.Waiting+1) / float64(max(1, s.Running)))
	return &server.FullError{
		Running: s.Running, Waiting: s.Waiting, RetryAfter: int(min(wait, time.Minute).Seconds()) +
			1,
	}
}

// request converts r for the engine, and lists its pictures.
func (b *Backend) request(r *ask.Request) (q engine.Request, pics []*ask.Picture, err error) {
	q = engine.Request{
		Stop: r.Stop, IgnoreEnd: r.IgnoreEOS, LogProbs: r.Logprobs, Top: r.Top, NoCache: r.NoCache,
		MaxTokens: b.maxTokens(r.MaxTokens), Sample: b.sampling(&r.Sampling), Context: r.Context,
		Arrived: r.Arrived,
	}
	if !r.NoCache && r.Tenant+r.Salt != "" {
		q.Salt = r.Tenant + "\x00" + r.Salt
	}
	q.Constraint = b.fact.constraint(&r.Format)
	if r.Prompt != nil {
		// which is not used here, but may be wrong
		if _, err := b.reduction(nil, &r.Reduction); err != nil {
			return q, nil, err
		}
		q.Tokens, err = b.prompt(r.Prompt)
		return q, nil, err
	}
	var images []*engine.Image
	for _, m := range r.Messages {
		out := engine.Message{Role: string(m.Role)}
		for _, p := range m.Parts {
			part := engine.Part{Text: p.Text}
			if p.Picture != nil {
				part.Image = &engine.Image{Decode: b.o.Decode}
				pics, images = append(pics, p.Picture), append(images, part.Image)
				if part.Reduce, err = b.reduction(p.Picture, &r.Reduction); err != nil {
					return q, pics, err
				}
			}
			out.Parts = append(out.Parts, part)
		}
		q.Messages = append(q.Messages, out)
	}
	if len(pics) == 0 {
		if _, err := b.reduction(nil, &r.Reduction); err != nil {
			return q, nil, err
		}
	}
	if r.Load == nil {
		return q, pics, files(images, pics)
	}
	q.Load = func(ctx context.Context) error {
		if err := r.Load(ctx); err != nil {
			return err
		}
		return files(images, pics)
	}
	return q, pics, nil
}

// files gives the engine the files of pictures that are loaded.
func files(images []*engine.Image, pics []*ask.Picture) error {
	for i, p := range pics {
		if err := readable(p); err != nil {
			return err
		}
		images[i].File = p.Data
	}
	return nil
}

// readable refuses formats that only commands accept.
func readable(p *ask.Picture) error {
	if bytes.HasPrefix(p.Data, []byte("II*\x00")) || bytes.HasPrefix(p.Data, []byte("MM\x00*")) {
		return &server.FieldError{
			Path: p.Path, Err: &errs.PictureError{
				Index: -1, Fault: errs.UnknownFormat, Err: errors.New("got TIFF"),
			},
		}
	}
	return nil
}

func (b *Backend) maxTokens(asked int) int {
	switch {
	case asked == ask.Unlimited:
		return 0
	case asked == 0:
		return b.o.MaxTokens
	}
	return asked
}

// sampling overrides the defaults with the request's values. Without a seed it draws one, so that
// the reply can name it.
func (b *Backend) sampling(s *ask.Sampling) sample.Options {
	o := b.o.Sampling
	if s.Temperature != nil {
		o.Temp = *s.Temperature
	}
	if s.TopK != nil {
		o.TopK = *s.TopK
	}
	if s.TopP != nil {
		o.TopP = *s.TopP
	}
	if s.MinP != nil {
		o.MinP = *s.MinP
	}
	switch {
	case s.Seed != nil:
		o.Seed = *s.Seed
	case o.Temp > 0:
		o.Seed = rand.Int64N(1 << 53)
	}
	return o
}

// prompt returns the tokens of a prompt without a template.
func (b *Backend) prompt(p *ask.Prompt) ([]int32, error) {
	ids := p.Tokens
	if ids == nil {
		if err := b.e.CheckText(len(p.Text)); err != nil {
			return nil, err
		}
		enc, err := b.tok.Encode(p.Text, tokenizer.EncodeOptions{
			AddSpecial: true, SpecialsAsText: true,
		})
		if err != nil {
			return nil, wire.Bad("invalid_value", "prompt", "%v", err)
		}
		ids = enc.IDs
	}
	if len(ids) == 0 {
		return nil, wire.Bad("invalid_value", "prompt",
			"got an empty prompt, want at least one token")
	}
	if i := slices.IndexFunc(ids, b.e.StandsForPicture); i >= 0 {
		return nil, wire.Bad("invalid_value", fmt.Sprintf("prompt[%d]", i),
			"got %d, which stands for a picture, and there is none", ids[i])
	}
	return ids, nil
}

// located adds the field to an error of the engine.
func (b *Backend) located(err error, r *ask.Request, pics []*ask.Picture) error {
	var picture *errs.PictureError
	var option *errs.OptionError
	switch {
	case errors.As(err, &picture) && picture.Index >= 0 && picture.Index < len(pics):
		return &server.FieldError{Path: pics[picture.Index].Path, Err: err}
	case errors.As(err, &option) && option.Name != "messages":
		return b.blame(option, r, pics)
	}
	return err
}

// job is a request that runs.
type job struct {
	b    *Backend
	j    *engine.Job
	r    *ask.Request
	seed *int64
}

// Next implements server.Job.
func (j *job) Next() (*ask.Event, bool) {
	p, ok := j.j.Next()
	if !ok {
		return nil, false
	}
	return &ask.Event{Text: p.Text, Tokens: tokens(p.Tokens)}, true
}

// Ready implements server.Job.
func (j *job) Ready() bool { return j.j.Ready() }

// Answer implements server.Job.
func (j *job) Answer() (*ask.Answer, error) {
	a, err := j.j.Answer()
	if err != nil {
		return nil, err
	}
	rep := &a.Report
	j.b.learn(rep.FirstToken + rep.Decode - rep.Queue)
	out := &ask.Answer{
		Text: a.Text, Finish: ask.Finish(a.Finish), Seed: j.seed, Count: count(rep, j.r.Groups),
		Completion: rep.GeneratedTokens, Cached: rep.CachedTokens,
		Timings: ask.Timings{
			Queue: rep.Queue, Prepare: rep.Prepare, Encode: rep.Encode, Select: rep.Select,
			Merge:   rep.Merge,
			Prefill: rep.Prefill, FirstToken: rep.FirstToken, Decode: rep.Decode},
	}
	if j.r.Logprobs {
		out.Tokens = tokens(a.Scored)
	}
	return out, nil
}

// learn updates the average time of a request, without waiting.
func (b *Backend) learn(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.took == 0 {
		b.took = d
	}
	b.took += (d - b.took) / 8
}

// tokens returns the tokens that produce text.
func tokens(list []engine.Token) []ask.Token {
	var out []ask.Token
	for _, t := range list {
		if len(t.Bytes) == 0 {
			continue
		}
		a := ask.Token{Bytes: t.Bytes, Logprob: t.LogProb}
		for _, top := range t.Top {
			a.Top = append(a.Top, ask.Token{Bytes: top.Bytes, Logprob: top.LogProb})
		}
		out = append(out, a)
	}
	return out
}

// count returns the tokens of a prompt.
func count(r *engine.Report, groups bool) ask.Count {
	c := ask.Count{Prompt: r.PromptTokens, Image: r.ImageTokens}
	for i := range r.Images {
		c.Pictures = append(c.Pictures, picture(&r.Images[i], groups))
	}
	return c
}

// picture makes the report of one picture.
func picture(i *engine.ImageReport, groups bool) ask.PictureReport {
	options := i.Options
	// whatever the request asked for, every token was read
	if i.Reduction == nil && len(options.Stages) == 0 {
		options = reduce.Resolved{
			Base: "none", N: i.Tokens, NVis: i.Tokens, Keep: i.Tokens, Gamma: 1,
			Positions: "original", Calibrate: "off", Content: i.Content}
	}
	p := ask.PictureReport{
		Width: i.Width, Height: i.Height, Tokens: i.Tokens, Kept: i.Kept, Merged: i.Merged,
		Mean: i.Mean(), Cache: ask.Cache(i.Cache), Method: options.String()}
	p.Parameters, _ = json.Marshal(options) // numbers and names always encode
	if !groups {
		return p
	}
	if len(i.Grids) == 1 && i.Grids[0].Tokens == nil {
		g := &i.Grids[0]
		p.Rows, p.Cols = g.Rows, g.Cols
		p.Area = ask.Area{Width: float64(i.Width), Height: float64(i.Height)}
		if f := g.Frame; f.W > 0 && f.H > 0 {
			p.Area = ask.Area{X: f.X0, Y: f.Y0, Width: f.W, Height: f.H}
		}
	}
	p.Groups = []ask.Group{}
	if i.Reduction == nil {
		for t := range i.Tokens {
			p.Groups = append(p.Groups, ask.Group{
				Members: []int{t}, Position: float64(t), Kept: true,
			})
		}
		return p
	}
	for _, row := range i.Reduction.Rows {
		g := ask.Group{
			Members: make([]int, len(row.Members)), Position: row.Position, Kept: !row.Merged,
		}
		for k, m := range row.Members {
			g.Members[k] = int(m)
		}
		p.Groups = append(p.Groups, g)
	}
	return p
}

// Tokenize implements server.Backend.
func (b *Backend) Tokenize(text string, o server.TokenizeOptions) ([]server.Token, error) {
	if err := b.e.CheckText(len(text)); err != nil {
		return nil, err
	}
	enc, err := b.tok.Encode(text, tokenizer.EncodeOptions{
		AddSpecial: o.AddSpecial, SpecialsAsText: !o.ParseSpecial,
	})
	if err != nil {
		return nil, err
	}
	out := make([]server.Token, len(enc.IDs))
	for i, id := range enc.IDs {
		out[i] = server.Token{ID: id, Bytes: b.tok.Piece(id, false)}
		if b.tok.IsSpecial(id) {
			name, _ := b.tok.Token(id)
			out[i].Bytes = []byte(name)
		}
	}
	return out, nil
}

// Detokenize implements server.Backend.
func (b *Backend) Detokenize(ids []int32) string { return b.tok.Decode(ids, false) }

// State implements server.Backend.
func (b *Backend) State() server.State {
	s := b.e.Stats()
	out := server.State{
		Running: s.Running, Queued: s.Waiting, KVBytes: s.KVBytes, KVLimit: s.KVLimit,
		FeatureMisses: s.Features.Misses, FeatureEvicted: s.Features.Evictions,
		FeatureUnsaved: s.Unsaved,
		PrefixHits:     s.Prefixes.Hits, PrefixMisses: s.Prefixes.Misses,
		Features: map[string]server.TierState{
			"memory": {
				Hits: s.Features.Hits - s.Features.DiskHits, Bytes: s.Features.Bytes,
				Entries: s.Features.Entries,
			},
		}}
	if d := b.o.Disk; d != nil {
		n := d.Stats()
		out.FeatureCorrupt = n.Corrupt
		out.FeatureEvicted += n.Evicted
		out.FeatureUnsaved += n.Unsaved
		out.Features["disk"] = server.TierState{
			Hits: s.Features.DiskHits, Bytes: n.Bytes, Entries: int(n.Entries),
		}
	}
	return out
}

// store adapts a folder on disk to the engine.
type store struct{ *diskcache.Cache }

// Store makes d a store of reduced pictures for the engine.
func Store(d *diskcache.Cache) engine.Store { return store{d} }

// Load implements engine.Store.
func (s store) Load(key engine.Key) ([]byte, bool) { return s.Cache.Load(key) }

// Save implements engine.Store.
func (s store) Save(key engine.Key, data []byte) { s.Cache.Save(key, data) }

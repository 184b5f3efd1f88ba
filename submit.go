package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/reduce"
)

// Submit implements [Service]. The error is one of [Model.Ask]'s, or an [errs.FullError] when the
// queue is full.
func (m *Model) Submit(ctx context.Context, r *Request) (Job, error) {
	q, err := m.request(r)
	if err != nil {
		return nil, err
	}
	j, err := m.e.Submit(ctx, *q)
	if err != nil {
		return nil, m.refused(err)
	}
	return &job{m: m, j: j, r: answered(r)}, nil
}

// Count implements [Service].
func (m *Model) Count(ctx context.Context, r *Request) (*Answer, error) {
	q, err := m.request(r)
	if err != nil {
		return nil, err
	}
	report, err := m.e.Count(ctx, *q)
	if err != nil {
		return nil, m.refused(err)
	}
	return newAnswer(&engine.Answer{Report: *report}, answered(r)), nil
}

// refused adds an estimate of the wait to the error of a full queue.
func (m *Model) refused(err error) error {
	if !errors.Is(err, errs.ErrQueueFull) {
		return err
	}
	s := m.e.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := time.Duration(float64(m.took) * float64(s.Waiting+1) / float64(max(1, s.Running)))
	return &errs.FullError{Running: s.Running, Waiting: s.Waiting,
		RetryAfter: int(min(wait, time.Minute).Seconds()) + 1}
}

// learn updates the average time of a request, without waiting.
func (m *Model) learn(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.took == 0 {
		m.took = d
	}
	m.took += (d - m.took) / 8
}

// job implements [Job].
type job struct {
	m *Model
	j *engine.Job
	r reporting
}

// Next implements [Job].
func (j *job) Next() (*Piece, bool) {
	p, ok := j.j.Next()
	if !ok {
		return nil, false
	}
	piece := newPiece(p)
	return &piece, true
}

// Ready implements [Job].
func (j *job) Ready() bool { return j.j.Ready() }

// Answer implements [Job].
func (j *job) Answer() (*Answer, error) {
	a, err := j.j.Answer()
	if a == nil {
		return nil, err
	}
	if err == nil {
		j.m.learn(a.Report.FirstToken + a.Report.Decode - a.Report.Queue)
	}
	return newAnswer(a, j.r), err
}

// request converts r for the engine.
func (m *Model) request(r *Request) (*engine.Request, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	q := &engine.Request{
		System: r.System, Places: r.Places, Tokens: r.Tokens, MaxTokens: r.MaxTokens,
		Context: r.Context, IgnoreEnd: r.IgnoreEnd, Stop: r.Stop, LogProbs: r.Logprobs, Top: r.Top,
		NoCache: r.NoCache, Salt: r.Salt, Arrived: r.Arrived,
		Background: r.Background,
		VideoAfter: r.VideoAfter,
		Sample:     r.Sampling.engine(),
	}
	var err error
	if q.Reduce, err = r.Reduction.checked(); err != nil {
		return nil, err
	}
	if r.Format.Object || r.Format.Schema != nil {
		if m.formats == nil {
			return nil, errNoTokenizer
		}
		q.Constraint = m.formats.constraint(&r.Format)
	}
	if r.Raw || r.Tokens != nil {
		return q, m.verbatim(q, r)
	}
	if q.Video, err = r.Video.engine(); err != nil {
		return nil, err
	}
	var late []*engine.Image // with their pictures, until the request has its place
	var from []*Picture
	image := func(p *Picture) *engine.Image {
		im, unread := p.image()
		if unread {
			late, from = append(late, &im), append(from, p)
		}
		return &im
	}
	q.Prompt = r.Prompt
	for _, p := range r.Pictures {
		q.Images = append(q.Images, image(p))
	}
	if q.Messages, err = messages(r.Messages, image); err != nil {
		return nil, err
	}
	if late == nil {
		return q, nil
	}
	load := &Request{Pictures: from}
	q.Load = func(ctx context.Context) error {
		err := load.Load(ctx)
		for i, im := range late {
			*im, _ = from[i].image()
		}
		return err
	}
	return q, nil
}

// messages converts a dialogue for the engine.
func messages(list []Message, image func(*Picture) *engine.Image) ([]engine.Message, error) {
	var out []engine.Message
	for _, m := range list {
		to := engine.Message{Role: string(m.Role)}
		for _, p := range m.Parts {
			part := engine.Part{Text: p.Text}
			if p.Picture != nil {
				part.Image = image(p.Picture)
				if p.Reduction != nil {
					o, err := p.Reduction.checked()
					if err != nil {
						return nil, err
					}
					part.Reduce = &o
				}
			}
			to.Parts = append(to.Parts, part)
		}
		out = append(out, to)
	}
	return out, nil
}

// verbatim sets the tokens of a prompt that is read as it stands.
func (m *Model) verbatim(q *engine.Request, r *Request) error {
	const name = "prompt"
	if r.Raw {
		tok := m.e.Tokenizer()
		if tok == nil {
			return errNoTokenizer
		}
		if err := m.e.CheckText(len(r.Prompt)); err != nil {
			return err
		}
		if !utf8.ValidString(r.Prompt) {
			return &errs.OptionError{Name: name, Got: "bytes that are no UTF-8", Want: "UTF-8",
				Why: "a raw prompt is read as it stands"}
		}
		enc, err := tok.Encode(r.Prompt, tokenizer.EncodeOptions{
			AddSpecial: true, SpecialsAsText: true,
		})
		if err != nil {
			return err
		}
		q.Tokens = enc.IDs
	}
	if len(q.Tokens) == 0 {
		return &errs.OptionError{Name: name, Got: "an empty prompt", Want: "at least one token"}
	}
	for i, id := range q.Tokens {
		if m.e.StandsForPicture(id) {
			return &errs.OptionError{Name: fmt.Sprintf("%s[%d]", name, i), Got: fmt.Sprint(id),
				Want: "a token of text", Why: "it stands for a picture, and there is none"}
		}
	}
	return nil
}

// reporting is what a report needs of a request.
type reporting struct {
	groups, logprobs bool
	pictures         []*Picture
}

func answered(r *Request) reporting {
	return reporting{r.Groups, r.Logprobs, slices.Collect(r.pictures())}
}

// newAnswer converts an answer of the engine.
func newAnswer(a *engine.Answer, r reporting) *Answer {
	if a == nil {
		return nil
	}
	rep := &a.Report
	out := &Answer{
		Text: a.Text, Tokens: a.Tokens, Finish: Finish(a.Finish), Stop: a.Stop,
		ChosenBefore: rep.ChosenBefore,
		Usage: Usage{Prompt: rep.PromptTokens, Image: rep.ImageTokens, Cached: rep.CachedTokens,
			Generated: rep.GeneratedTokens},
		Timings: Timings{Queue: rep.Queue, Prepare: rep.Prepare, Encode: rep.Encode,
			Select: rep.Select, Merge: rep.Merge, Prefill: rep.Prefill, FirstToken: rep.FirstToken,
			Decode: rep.Decode},
	}
	if r.logprobs {
		out.Logprobs = newTokens(a.Scored)
	}
	left := r.pictures
	for i := range rep.Images {
		p := newPictureReport(&rep.Images[i], r.groups)
		if !rep.Images[i].Video && len(left) > 0 {
			p.picture, left = left[0], left[1:]
		}
		out.Pictures = append(out.Pictures, p)
	}
	return out
}

// newPiece converts a piece of the engine.
func newPiece(p engine.Piece) Piece { return Piece{Text: p.Text, Tokens: newTokens(p.Tokens)} }

// newTokens converts the tokens that produce text.
func newTokens(list []engine.Token) []Token {
	var out []Token
	for _, t := range list {
		if len(t.Bytes) == 0 {
			continue
		}
		a := Token{ID: t.ID, Bytes: t.Bytes, Logprob: t.LogProb}
		for _, top := range t.Top {
			a.Top = append(a.Top, Token{ID: top.ID, Bytes: top.Bytes, Logprob: top.LogProb})
		}
		out = append(out, a)
	}
	return out
}

// newPictureReport converts the report of one picture.
func newPictureReport(i *engine.ImageReport, groups bool) PictureReport {
	options := i.Options
	// whatever the request asked for, every token was read
	if i.Reduction == nil && len(options.Stages) == 0 {
		options = reduce.Resolved{
			Base: "none", N: i.Tokens, NVis: i.Tokens, Keep: i.Tokens, Gamma: 1,
			Positions: "original", Calibrate: "off", Content: i.Content}
	}
	p := PictureReport{
		Width: i.Width, Height: i.Height, Tokens: i.Tokens, Encoded: i.Encoded, Kept: i.Kept,
		Merged: i.Merged, Mean: i.Mean(), Cache: Cache(i.Cache), Method: options.String(),
		Content: i.Content, Reduction: i.Reduction, grids: i.Grids}
	p.Parameters, _ = json.Marshal(options) // numbers and names always encode
	if groups {
		p.addGroups(i)
	}
	return p
}

// addGroups adds the grid, and the tokens that each row stands for.
func (r *PictureReport) addGroups(i *engine.ImageReport) {
	if len(i.Grids) == 1 && i.Grids[0].Tokens == nil {
		g := &i.Grids[0]
		r.Rows, r.Cols = g.Rows, g.Cols
		r.Area = Area{Width: float64(i.Width), Height: float64(i.Height)}
		if f := g.Frame; f.W > 0 && f.H > 0 {
			r.Area = Area{X: f.X0, Y: f.Y0, Width: f.W, Height: f.H}
		}
	}
	r.Groups = []Group{}
	if i.Reduction == nil {
		for t := range i.Tokens {
			r.Groups = append(r.Groups, Group{Members: []int{t}, Position: float64(t), Kept: true})
		}
		return
	}
	for _, row := range i.Reduction.Rows {
		members := make([]int, len(row.Members))
		g := Group{Members: members, Position: row.Position, Kept: !row.Merged}
		for k, m := range row.Members {
			members[k] = int(m)
		}
		r.Groups = append(r.Groups, g)
	}
}

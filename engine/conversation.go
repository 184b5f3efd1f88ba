package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/sample"
	"github.com/restore-vlm/restore/tokenizer"
	"github.com/restore-vlm/restore/tokenizer/chat"
)

// Conversation is a dialogue about pictures. Reduced tokens, keys and values are
// kept between turns: a turn reads only what is new. It is not safe for
// concurrent use.
type Conversation struct {
	e        *Engine
	options  reduce.Options
	messages []chat.Message
	pics     []*picture

	cache *nn.KVCache
	done  []unit // what cache holds
}

// NewConversation starts a dialogue whose pictures are all reduced by o.
func (e *Engine) NewConversation(o reduce.Options) *Conversation {
	return &Conversation{e: e, options: o, cache: e.newCache()}
}

func (e *Engine) newCache() *nn.KVCache {
	layers, width := e.shape.Layers, e.shape.KVHeads*e.shape.HeadDim
	if e.half {
		return nn.NewHalfKVCache(layers, width)
	}
	return nn.NewKVCache(layers, width)
}

// Reset forgets the dialogue and keeps what was read: a next question that
// begins with the same pictures reuses their keys and values.
//
// Not so the pictures that a reducer inside the decoder shrank for the question:
// they are read again.
func (c *Conversation) Reset() {
	c.messages, c.pics = nil, nil
	for i, u := range c.done {
		if u.pic != nil && u.pic.inside != nil {
			c.forget(i)
			break
		}
	}
}

// Ask answers one question on its own.
func (e *Engine) Ask(ctx context.Context, req Request) (*Answer, error) {
	c, done := e.once(req.Reduce)
	defer done()
	return c.Ask(ctx, req)
}

// once starts a dialogue of one question; done gives its memory to the next one.
func (e *Engine) once(o reduce.Options) (c *Conversation, done func()) {
	c = e.NewConversation(o)
	if cache, ok := e.caches.take(); ok {
		c.cache = cache
	}
	return c, func() {
		c.Forget()
		e.caches.put(c.cache)
	}
}

// Ask answers the next question. After an error, and after an answer that was
// cancelled before its first token, the dialogue is as it was before the call.
func (c *Conversation) Ask(ctx context.Context, req Request) (*Answer, error) {
	start := time.Now()
	e := c.e
	if e.tok == nil {
		return nil, fmt.Errorf("engine: %s: no tokenizer.json, which questions need", e.ck.Name)
	}
	if req.MaxTokens < 0 {
		return nil, fmt.Errorf("engine: max tokens: got %d, want 0 (up to the context) or more", req.MaxTokens)
	}
	sampler, err := sample.New(req.Sample)
	if err != nil {
		return nil, err
	}
	r := e.run()
	defer e.runs.put(r)
	r.Context, r.Trace = ctx, nil

	ans := &Answer{}
	added, err := c.look(r, &req, &ans.Report)
	if err != nil {
		return nil, err
	}
	before := c.messages
	if req.System != "" {
		if before, err = e.system(req.System, before); err != nil {
			return nil, err
		}
	}
	messages := append(before[:len(before):len(before)], userMessage(req.Prompt, added))
	pics := append(c.pics[:len(c.pics):len(c.pics)], added...)
	units, err := e.prompt(messages, pics)
	if err != nil {
		return nil, err
	}
	s := &sequence{e: e, most: req.MaxTokens, cache: c.cache, calib: calibrationOf(e, pics)}
	err = c.prefill(r, s, units, &ans.Report)
	for _, p := range added {
		ans.Report.add(p)
	}
	if err != nil {
		if ctx.Err() != nil {
			ans.Finish = FinishCancelled
			ans.Report.PeakRSS = peakRSS()
			return ans, nil
		}
		return nil, err
	}
	if err := s.generate(r, sampler, &req, ans, start); err != nil {
		return nil, err
	}
	c.messages = append(messages, chat.Message{Role: "assistant", Content: []chat.Part{{Type: "text", Text: strings.TrimPrefix(ans.Text, " ")}}})
	c.pics = pics
	c.done = append(units[:len(units):len(units)], s.fed...)
	if s.calib != nil && s.calib.Distance && !s.calib.DecodeDistance {
		c.forget(len(units)) // answers read without the distance term are read again as part of the next prompt
	}
	return ans, nil
}

// look encodes and reduces the request's new pictures.
func (c *Conversation) look(r *model.Run, req *Request, rep *Report) ([]*picture, error) {
	seen := req.Seen
	if seen != nil && (len(req.Images) > 0 || req.Video != nil) {
		return nil, fmt.Errorf("engine: request: both pictures and encoded pictures, want one")
	}
	if seen == nil && (len(req.Images) > 0 || req.Video != nil) {
		var err error
		if seen, err = c.e.see(r, req.Video, req.Images, needs(c.options)); err != nil {
			return nil, err
		}
		rep.Prepare, rep.Encode = seen.prepare, seen.encode
	}
	if seen == nil {
		return nil, nil
	}
	var pics []*picture
	for i, v := range seen.visuals {
		p := c.known(v)
		if p == nil {
			var err error
			if p, err = c.e.reduce(r, v, i, c.options); err != nil {
				return nil, err
			}
			if i < len(seen.frames) {
				p.frames = seen.frames[i]
			}
			rep.Encode += p.encode
			if p.reduction != nil {
				rep.Select += p.reduction.SelectTime
				rep.Merge += p.reduction.MergeTime
			}
		}
		pics = append(pics, p)
	}
	return pics, nil
}

// known returns the reduced form of v if the cache still holds it. What a
// reducer inside the decoder made of it belongs to its question.
func (c *Conversation) known(v *model.Visual) *picture {
	for _, u := range c.done {
		if u.pic != nil && u.pic.visual == v && u.pic.inside == nil {
			return u.pic
		}
	}
	return nil
}

func (r *Report) add(p *picture) {
	i := ImageReport{Tokens: p.visual.N, Kept: p.visual.N, Reduction: p.reduced(), Grids: p.grids()}
	if i.Reduction != nil {
		i.Kept, i.Merged = i.Reduction.Counts()
	}
	if p.inside != nil {
		r.Select, r.Merge = r.Select+p.inside.SelectTime, r.Merge+p.inside.MergeTime
	}
	if len(r.Images) == 0 {
		r.Options = p.options
	}
	r.Images = append(r.Images, i)
	r.Before += i.Tokens
	r.Kept += i.Kept
	r.Merged += i.Merged
}

// calibrationOf returns the bias for a dialogue about pics: none as long as no
// picture lost a token.
func calibrationOf(e *Engine, pics []*picture) *nn.Calibration {
	var c *nn.Calibration
	for _, p := range pics {
		if p.reduction != nil {
			return e.calibration(&p.options, false)
		}
		if len(p.options.Stages) > 0 {
			if first := p.options.FirstReduced(); c == nil || first < c.From {
				if c = e.calibration(&p.options, false); c == nil {
					return nil
				}
				c.From = first
			}
		}
	}
	return c
}

func userMessage(text string, pics []*picture) chat.Message {
	m := chat.Message{Role: "user"}
	for _, p := range pics {
		part := chat.Part{Type: "image"}
		if p.visual.Video {
			part.Type = "video"
		}
		m.Content = append(m.Content, part)
	}
	m.Content = append(m.Content, chat.Part{Type: "text", Text: text})
	return m
}

// system returns the messages of a dialogue that begins with a system prompt.
// A second question may repeat it.
func (e *Engine) system(text string, before []chat.Message) ([]chat.Message, error) {
	m := chat.Message{Role: "system", Content: []chat.Part{{Type: "text", Text: text}}}
	if len(before) > 0 {
		if before[0].Role != m.Role || before[0].Content[0].Text != text {
			return nil, fmt.Errorf("engine: system prompt: got %.40q after the first question, want it with the first", text)
		}
		return before, nil
	}
	with, err := e.encode([]chat.Message{m, userMessage("", nil)})
	if err != nil {
		return nil, err
	}
	without, err := e.encode([]chat.Message{userMessage("", nil)})
	if err != nil {
		return nil, err
	}
	if slices.Equal(with, without) {
		return nil, fmt.Errorf("engine: system prompt: the chat template (%s) has no place for one", e.source)
	}
	return []chat.Message{m}, nil
}

// prompt renders messages and puts pics in their places.
func (e *Engine) prompt(messages []chat.Message, pics []*picture) ([]unit, error) {
	ids, err := e.encode(messages)
	if err != nil {
		return nil, err
	}
	return e.units(ids, pics)
}

// encode renders messages and returns the ids, one picture token a picture.
// What users wrote never becomes a control token.
func (e *Engine) encode(messages []chat.Message) ([]int32, error) {
	segs, err := e.template.RenderSegments(messages, chat.Options{AddGenerationPrompt: true, SpecialTokens: e.special})
	if err != nil {
		return nil, err
	}
	parts := make([]tokenizer.Segment, len(segs))
	for i, s := range segs {
		parts[i] = tokenizer.Segment{Text: s.Text, User: s.User}
	}
	return e.tok.EncodeSegments(parts, tokenizer.EncodeOptions{AddSpecial: true})
}

// prefill brings the cache to units, keeping the longest stretch from the start
// that it holds already.
func (c *Conversation) prefill(r *model.Run, s *sequence, units []unit, rep *Report) error {
	start := time.Now()
	same := 0
	for same < len(units)-1 && same < len(c.done) && units[same] == c.done[same] {
		same++
	}
	kept := c.forget(same)
	at := 0.0
	for _, u := range units {
		rep.PromptTokens += u.rows()
	}
	for _, u := range units[:same] {
		if u.pic != nil {
			at += u.pic.span()
			if u.pic.inside != nil {
				rep.ChosenBefore++
			}
		} else {
			at++
		}
	}
	rep.CachedTokens = kept
	rows, err := c.e.layout(units[same:], at)
	if err != nil {
		return err
	}
	if err := s.prefill(r, rows); err != nil {
		c.forget(same)
		return err
	}
	c.done = units
	rep.Prefill = time.Since(start)
	for i := range rows.staged {
		st := &rows.staged[i]
		rep.Prefill -= st.SelectTime + st.MergeTime
	}
	return nil
}

// forget cuts the cache to the first n units and returns the rows left.
func (c *Conversation) forget(n int) int {
	rows := 0
	c.done = c.done[:min(n, len(c.done))]
	for _, u := range c.done {
		rows += u.rows()
	}
	for i := range c.cache.Layers() {
		keys, shift := 0, 0.0
		for _, u := range c.done {
			keys += u.keys(i)
			shift += u.shift(i)
		}
		l := c.cache.Layer(i)
		l.Truncate(keys)
		l.Shift = shift
	}
	return rows
}

// Forget drops kept keys and values: the next question reads the whole dialogue
// again.
func (c *Conversation) Forget() { c.forget(0) }

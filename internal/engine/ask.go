package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

// Ask answers one request. When ctx ends, it returns the answer so far and the cause of ctx.
func (e *Engine) Ask(ctx context.Context, req Request) (*Answer, error) {
	j, err := e.Submit(ctx, req)
	if err != nil {
		return cancelled(ctx, err)
	}
	return j.wait(req.OnText)
}

// wait passes the job's pieces to onText, which may be nil, and returns the answer. If the
// request's context ends before onText has received all pieces, the answer ends where onText
// stopped.
func (j *Job) wait(onText func(string)) (*Answer, error) {
	if onText == nil {
		return j.Answer()
	}
	var text, scored int
	for {
		p, ok := j.Next()
		if !ok {
			return j.Answer()
		}
		text, scored = text+len(p.Text), scored+len(p.Tokens)
		if p.Text != "" {
			onText(p.Text)
		}
		cause := context.Cause(j.s.ctx)
		if cause == nil {
			continue
		}
		a, err := j.Answer()
		if a == nil || text == len(a.Text) {
			return a, err
		}
		cut := *a
		cut.Text, cut.Scored, cut.Tokens = a.Text[:text], a.Scored[:scored], a.Tokens[:p.made]
		cut.Finish, cut.Report.GeneratedTokens = FinishCancelled, p.made
		return &cut, cause
	}
}

// cancelled returns the result of a request whose context ended before it was accepted.
func cancelled(ctx context.Context, err error) (*Answer, error) {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return &Answer{Finish: FinishCancelled}, cause
	}
	return nil, err
}

// Submit accepts a request or returns an error. Every check that can refuse a request runs here.
// Pictures are decoded and prepared before it returns. The Report tells how long the request waited
// for a place.
func (e *Engine) Submit(ctx context.Context, req Request) (*Job, error) {
	s, err := e.sequence(ctx, req)
	if err == nil {
		err = e.queue(s)
	}
	if err != nil {
		return nil, err
	}
	return &Job{s}, nil
}

// Count prepares a request's pictures and returns the size of its prompt, without running the
// decoder.
func (e *Engine) Count(ctx context.Context, req Request) (*Report, error) {
	s, err := e.sequence(ctx, req)
	if err == nil {
		s.count = true
		err = e.queue(s)
	}
	if err != nil {
		return nil, err
	}
	ans, err := (&Job{s}).Answer()
	if err != nil {
		return nil, err
	}
	return &ans.Report, nil
}

// Do calls f on the device's goroutine when its turn comes. The passes of f's workspace let running
// requests decode between blocks, and they end when ctx does.
func (e *Engine) Do(ctx context.Context, f func(r *model.Run) error) error {
	s := newSequence(e, ctx, &Request{})
	s.work = f
	if err := e.queue(s); err != nil {
		return err
	}
	_, err := (&Job{s}).Answer()
	return err
}

func newSequence(e *Engine, ctx context.Context, req *Request) *sequence {
	return &sequence{
		e: e, ctx: ctx, req: req, start: time.Now(), ready: make(chan struct{}, 1),
		done: make(chan struct{}), ans: &Answer{},
	}
}

// queue submits s to the device.
func (e *Engine) queue(s *sequence) error {
	s.queued = time.Now()
	err := context.Cause(s.ctx)
	if err == nil && e.device == nil {
		err = fmt.Errorf("engine: %s: opened only to describe it", e.ck.Name)
	}
	if err == nil {
		err = e.device.submit(s)
	}
	if err != nil {
		s.release()
	}
	return err
}

// release ends the sequence's use of picture data that it shares with other requests.
func (s *sequence) release() {
	for _, u := range s.units {
		if u.pic != nil {
			s.e.leavePicture(u.pic)
		}
	}
}

// sequence checks a request and prepares it.
func (e *Engine) sequence(ctx context.Context, req Request) (*sequence, error) {
	if err := e.Closed(); err != nil {
		return nil, err
	}
	if err := req.check(e.context); err != nil {
		return nil, err
	}
	d, err := e.dialogue(ctx, &req)
	if err != nil {
		return nil, err
	}
	d.added = len(d.pics)
	s := newSequence(e, ctx, &req)
	return s, s.prepare(d)
}

// stopsMost and stopMost limit the stop texts: how many, and the length of each.
const (
	stopsMost = 16
	stopMost  = 256
	topMost   = 20
)

// check validates a request. most is the engine's context in positions.
func (r *Request) check(most int) error {
	refuse := func(name string, fault errs.Fault, got any, want, why string) error {
		return fmt.Errorf("engine: %w", &errs.OptionError{
			Name: name, Got: fmt.Sprint(got), Want: want, Why: why, Fault: fault,
		})
	}
	question := r.Prompt != "" || r.System != "" || r.Video != nil || len(r.Places) > 0
	switch {
	case r.Context < 0 || r.Context > most:
		return refuse("ctx-size", errs.TooLarge, r.Context, fmt.Sprintf("0 (all) to %d", most),
			"the engine's context")
	case r.MaxTokens < 0:
		return refuse("max-tokens", errs.TooSmall, r.MaxTokens, "0 (up to the context) or more", "")
	case len(r.Stop) > stopsMost:
		return refuse("stop", errs.TooLarge, len(r.Stop),
			fmt.Sprintf("at most %d texts", stopsMost), "")
	case slices.Contains(r.Stop, ""):
		return refuse("stop", errs.Invalid, `""`, "texts that are not empty", "")
	case slices.ContainsFunc(r.Stop, func(s string) bool { return len(s) > stopMost }):
		return refuse("stop", errs.TooLarge, "a longer text",
			fmt.Sprintf("texts of at most %d bytes", stopMost), "")
	case r.Top < 0 || r.Top > topMost:
		return refuse("top-logprobs", errs.TooLarge, r.Top, fmt.Sprintf("0 to %d", topMost), "")
	case r.Top > 0 && !r.LogProbs:
		return refuse("top-logprobs", errs.Useless, r.Top, "", "without log probabilities")
	case len(r.Messages) > 0 &&
		(question || r.Images != nil || r.Encoded != nil || r.Tokens != nil):
		return refuse("messages", errs.Conflict, "a question too", "one of the two", "")
	case r.Tokens != nil && question:
		return refuse("tokens", errs.Conflict, "a question too", "one of the two", "")
	case r.Encoded != nil && (len(r.Images) > 0 || r.Video != nil):
		return refuse("pictures", errs.Conflict, "both pictures and encoded pictures",
			"one of the two", "")
	case r.NoCache && r.Salt != "":
		return refuse("cache-salt", errs.Useless, r.Salt, "", "without caches")
	}
	return nil
}

// dialogue holds the parts of a prompt.
type dialogue struct {
	messages []chat.Message
	tokens   []int32    // used instead of messages
	pics     []*picture // in order
	added    int        // new pictures, at the end of pics
	forgot   uint64     // mark of a conversation that forgot what it had read
}

// dialogue reads a request into messages or tokens, and pictures.
func (e *Engine) dialogue(ctx context.Context, req *Request) (d dialogue, err error) {
	defer func() {
		if err != nil {
			e.leave(d.pics)
		}
	}()
	if len(req.Messages) > 0 {
		return d, e.messages(ctx, req, &d)
	}
	if d.pics, err = e.pictures(ctx, req); err != nil {
		return d, err
	}
	if req.Tokens != nil {
		d.tokens = req.Tokens
		return d, e.checkTokens(req.Tokens)
	}
	if req.System != "" {
		if d.messages, err = e.system(req.System, nil); err != nil {
			return d, err
		}
	}
	question, err := userMessage(req.Prompt, d.pics, req.Places)
	d.messages = append(d.messages, question)
	return d, err
}

func (e *Engine) checkTokens(ids []int32) error {
	if len(ids) == 0 {
		return fmt.Errorf("engine: %w", &errs.OptionError{
			Name: "tokens", Want: "at least one", Fault: errs.Missing,
		})
	}
	for i, id := range ids {
		if (id < 0 || int(id) >= e.shape.Vocab) && !e.visualToken(id) {
			return fmt.Errorf("engine: %w", &errs.OptionError{
				Name: "tokens", Got: fmt.Sprintf("%d at %d", id, i), Fault: errs.TooLarge,
				Want: fmt.Sprintf("0 to %d", e.shape.Vocab-1), Why: "the model's vocabulary",
			})
		}
	}
	return nil
}

// messages fills d from a request that gives all messages. Picture indexes count within a message.
func (e *Engine) messages(ctx context.Context, req *Request, d *dialogue) error {
	total := 0
	for _, m := range req.Messages {
		out := chat.Message{Role: m.Role}
		index := 0
		for _, part := range m.Parts {
			if part.Image == nil {
				out.Content = append(out.Content, chat.Part{
					Type: "text", Text: withoutMarks(part.Text),
				})
				continue
			}
			o := &req.Reduce
			if part.Reduce != nil {
				o = part.Reduce
			}
			p, err := e.picture(ctx, part.Image, total, index, o, req)
			if err != nil {
				return err
			}
			d.pics = append(d.pics, p)
			out.Content = append(out.Content, chat.Part{Type: "image"})
			total, index = total+1, index+1
		}
		d.messages = append(d.messages, out)
	}
	return nil
}

// pictures prepares the pictures of a question.
func (e *Engine) pictures(ctx context.Context, req *Request) (pics []*picture, err error) {
	if req.Encoded != nil {
		for i, v := range req.Encoded.visuals {
			p := &picture{
				image: req.Encoded.images[i], visual: v, prepared: req.Encoded.prepared[i],
				index: i,
			}
			if err := e.resolve(p, &req.Reduce, req); err != nil {
				return pics, err
			}
			pics = append(pics, p)
		}
		return pics, nil
	}
	if req.Video != nil {
		start := time.Now()
		im, prepared, err := e.prepareVideo(ctx, req.Video)
		if err != nil {
			return pics, err
		}
		p := &picture{image: im, prepared: prepared, video: req.Video}
		p.spent.prepare = time.Since(start)
		if err := e.resolve(p, &req.Reduce, req); err != nil {
			return pics, err
		}
		pics = append(pics, p)
	}
	for i, pic := range req.Images {
		p, err := e.picture(ctx, &Image{Picture: pic}, i, len(pics), &req.Reduce, req)
		if err != nil {
			return pics, err
		}
		pics = append(pics, p)
	}
	return pics, nil
}

// picture returns the i-th picture of a request, the index-th of its message, reduced by o. The
// picture is decoded and prepared unless the decoder's rows for it are cached.
func (e *Engine) picture(
	ctx context.Context, m *Image, i, index int, o *methods.Options, req *Request,
) (_ *picture, err error) {
	start := time.Now()
	p := &picture{source: m, index: index}
	if !req.NoCache {
		if p.image = e.known(m.key()); p.image != nil {
			if err := e.resolve(p, o, req); err != nil {
				return nil, err
			}
			if e.cached.get(p.entry) != nil {
				p.spent.prepare = time.Since(start)
				return p, nil
			}
		}
	}
	known := p.image != nil
	if req.NoCache {
		p.image, p.prepared, err = e.prepare(ctx, m, i)
	} else {
		err = e.prepareShared(ctx, m, i, p, req.Salt)
	}
	p.spent.prepare = time.Since(start)
	if err == nil && !known {
		if !req.NoCache {
			e.learn(p.image)
		}
		err = e.resolve(p, o, req)
	}
	if err != nil {
		e.leave([]*picture{p})
		return nil, err
	}
	return p, nil
}

// resolve plans how p is reduced and takes p's entry in the feature cache.
func (e *Engine) resolve(p *picture, o *methods.Options, req *Request) (err error) {
	if p.planned, err = e.plan(p.shape, *o); err != nil {
		return err
	}
	key := e.featuresKey(p, req.Salt)
	p.id = e.rowsKey(p, key)
	if !req.NoCache {
		p.entry = e.cached.use(key)
		if e.cached.get(p.entry) == nil {
			p.disk = e.restore(p)
		}
		if f := e.cached.get(p.entry); f != nil && p.late != nil {
			p.got(f)
		}
	}
	return nil
}

// leave releases the shared data of pictures that no request will read.
func (e *Engine) leave(pics []*picture) {
	for _, p := range pics {
		e.leavePicture(p)
	}
}

// leavePicture releases p's entry in the feature cache and its share of a preparation.
func (e *Engine) leavePicture(p *picture) {
	if p.entry != nil {
		e.cached.leave(p.entry)
		p.entry = nil
	}
	e.unshare(p)
}

// prepare lays out the prompt of s. The report leaves out pictures of earlier questions.
func (s *sequence) prepare(d dialogue) (err error) {
	e := s.e
	defer func() {
		if err != nil {
			e.leave(d.pics)
		}
	}()
	if s.sampler, err = sample.New(s.req.Sample); err != nil {
		return err
	}
	if e.tok == nil && d.tokens == nil {
		return e.lacks(&e.ck.Parts().Tokenizer, "which questions need")
	}
	ids := d.tokens
	if ids == nil {
		if ids, err = e.tokenize(d.messages); err != nil {
			return err
		}
	}
	if s.units, err = e.units(ids, d.pics); err != nil {
		return err
	}
	if s.calib, err = e.calibration(d.pics); err != nil {
		return err
	}
	s.pics, s.most = d.pics[len(d.pics)-d.added:], s.req.MaxTokens
	s.all, s.forgot = d.pics, d.forgot
	for _, p := range d.pics {
		s.late = s.late || p.late != nil
	}
	s.root = rootOf(s.calib, s.req.Salt, s.forgot)
	s.writer = writer{stops: s.req.Stop, scored: s.req.LogProbs}
	if e.tok != nil {
		s.writer.stream = e.tok.NewStream()
	}
	if s.req.IgnoreEnd {
		s.ends = e.withoutEnds()
	}
	return s.claim()
}

// withoutEnds returns the mask of all tokens that do not end an answer.
func (e *Engine) withoutEnds() []uint64 {
	mask := make([]uint64, (e.shape.Vocab+63)/64)
	for i := range mask {
		mask[i] = math.MaxUint64
	}
	for id := range e.eos {
		if int(id) < e.shape.Vocab {
			mask[id/64] &^= 1 << (id % 64)
		}
	}
	return mask
}

// Encoded holds pictures that were encoded once, with every by-product that a method may read, so
// that requests with different reductions share the work.
type Encoded struct {
	images   []*image
	prepared []model.Picture
	visuals  []*model.Visual // nil for a picture that is not encoded yet
}

// Len returns the number of pictures.
func (s *Encoded) Len() int { return len(s.prepared) }

// Picture returns the i-th picture only.
func (s *Encoded) Picture(i int) *Encoded {
	return &Encoded{
		images: s.images[i : i+1], prepared: s.prepared[i : i+1], visuals: s.visuals[i : i+1],
	}
}

// Encode prepares and encodes pictures.
func (e *Engine) Encode(ctx context.Context, pics []*imageproc.Picture) (*Encoded, error) {
	out := &Encoded{}
	for i, pic := range pics {
		im, prepared, err := e.prepare(ctx, &Image{Picture: pic}, i)
		if err != nil {
			return nil, err
		}
		out.images, out.prepared = append(out.images, im), append(out.prepared, prepared)
	}
	err := e.Do(ctx, func(r *model.Run) error {
		for _, p := range out.prepared {
			v, err := e.m.Encode(r, []model.Picture{p}, model.Needs{
				ClsAttn: true, Keys: true, Last: !p.Shape().NoClass,
			})
			if err != nil {
				return err
			}
			out.visuals = append(out.visuals, v[0])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

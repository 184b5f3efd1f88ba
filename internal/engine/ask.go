package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/restore-vlm/restore/errs"
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
	return j.wait(req.OnPiece)
}

// wait passes the job's pieces to onPiece, which may be nil, and returns the answer. If the
// request's context ends before onPiece has received all pieces, the answer ends where onPiece
// stopped.
func (j *Job) wait(onPiece func(Piece)) (*Answer, error) {
	if onPiece == nil {
		return j.Answer()
	}
	var text, scored int
	for {
		p, ok := j.Next()
		if !ok {
			return j.Answer()
		}
		text, scored = text+len(p.Text), scored+len(p.Tokens)
		if p.Text != "" || len(p.Tokens) > 0 {
			onPiece(p)
		}
		cause := context.Cause(j.s.ctx)
		if cause == nil {
			continue
		}
		a, err := j.Answer()
		if a == nil {
			return nil, err
		}
		if text == len(a.Text) { // a last piece may have no text
			continue
		}
		cut := *a
		cut.Text, cut.Scored, cut.Tokens = a.Text[:text], a.Scored[:scored], a.Tokens[:p.made]
		cut.Finish, cut.Stop, cut.Report.GeneratedTokens = FinishCancelled, "", p.made
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

// Submit accepts a request or returns an error. Every check that can refuse a request runs here. A
// request with pictures first takes its place in the queue; then its pictures are loaded, decoded
// and prepared, before Submit returns and before the request can take a place to run. The Report
// tells how long the request waited.
func (e *Engine) Submit(ctx context.Context, req Request) (*Job, error) {
	return e.submit(&req, func() (*sequence, error) { return e.sequence(ctx, req) })
}

// submit takes a place in the queue and puts the sequence there that prepare makes of req.
func (e *Engine) submit(req *Request, prepare func() (*sequence, error)) (_ *Job, err error) {
	if err := e.refuse(req); err != nil {
		return nil, err
	}
	var place ticket
	if req.pictures() && e.device != nil {
		if place, err = e.device.enter(req); err != nil {
			return nil, err
		}
		defer func() { e.device.exit(place) }() // unless s has it
	}
	s, err := prepare()
	if err != nil {
		return nil, err
	}
	s.place, place = place, 0
	if err := e.queue(s); err != nil {
		return nil, err
	}
	return &Job{s}, nil
}

// refuse returns why the engine cannot take the request, as far as that is known without work.
func (e *Engine) refuse(req *Request) error {
	if err := e.Closed(); err != nil {
		return err
	}
	return req.check(e.context)
}

// pictures reports whether the request has pictures to prepare.
func (r *Request) pictures() bool {
	return r.Video != nil || len(r.Images) > 0 ||
		slices.ContainsFunc(r.Messages, func(m Message) bool {
			return slices.ContainsFunc(m.Parts, func(p Part) bool { return p.Image != nil })
		})
}

// Count prepares a request's pictures and returns the size of its prompt, without running the
// decoder.
func (e *Engine) Count(ctx context.Context, req Request) (*Report, error) {
	j, err := e.submit(&req, func() (*sequence, error) {
		s, err := e.sequence(ctx, req)
		if err == nil {
			s.count = true
		}
		return s, err
	})
	if err != nil {
		return nil, err
	}
	ans, err := j.Answer()
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

// newSequence returns the sequence of a request that arrives now, unless it says when it arrived.
func newSequence(e *Engine, ctx context.Context, req *Request) *sequence {
	start := time.Now()
	if !req.Arrived.IsZero() {
		start = req.Arrived
	}
	return &sequence{
		e: e, ctx: ctx, req: req, start: start, ready: make(chan struct{}, 1),
		done: make(chan struct{}), ans: &Answer{},
	}
}

// queue submits s to the device.
func (e *Engine) queue(s *sequence) error {
	err := context.Cause(s.ctx)
	if err == nil && e.device == nil {
		err = fmt.Errorf("engine: %s: opened only to describe it", e.ck.Name)
	}
	if err == nil {
		err = e.device.submit(s)
	}
	if err != nil {
		e.device.exit(s.place)
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

// sequence prepares a request that was checked.
func (e *Engine) sequence(ctx context.Context, req Request) (*sequence, error) {
	s := newSequence(e, ctx, &req)
	var d dialogue
	return s, s.begin(&d, func() error {
		if err := e.dialogue(ctx, &req, &d); err != nil {
			return err
		}
		d.added = len(d.pics)
		req.Messages = nil // the pictures' files are not needed any more
		return s.prepare(d)
	})
}

// begin loads the files of the request's pictures, and calls prepare, which puts all pictures into
// d. A panic becomes an error.
func (s *sequence) begin(d *dialogue, prepare func() error) (err error) {
	done := false
	defer func() {
		if v := recover(); v != nil {
			err = s.e.publicError(&model.Panic{Value: v, Stack: debug.Stack()})
		}
		if !done {
			s.e.leave(d.pics)
		}
	}()
	if s.req.Load != nil {
		loading := time.Now()
		if err := s.req.Load(s.ctx); err != nil {
			return err
		}
		s.req.Load, s.loading = nil, time.Since(loading)
	}
	if err := prepare(); err != nil {
		return err
	}
	done = true
	return nil
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
	beyond := func(n int) errs.Fault {
		if n < 0 {
			return errs.TooSmall
		}
		return errs.TooLarge
	}
	question := r.Prompt != "" || r.System != "" || r.Video != nil || len(r.Places) > 0
	switch {
	case r.Context < 0 || r.Context > most:
		return refuse("ctx-size", beyond(r.Context), r.Context, fmt.Sprintf("0 (all) to %d", most),
			"the engine's context")
	case r.MaxTokens < 0:
		return refuse("max-tokens", errs.TooSmall, r.MaxTokens, "0 (up to the context) or more", "")
	case len(r.Stop) > stopsMost:
		return refuse("stop", errs.TooLarge, len(r.Stop),
			fmt.Sprintf("at most %d texts", stopsMost), "")
	case slices.Contains(r.Stop, ""):
		return refuse("stop", errs.Invalid, `""`, "texts that are not empty", "")
	case slices.ContainsFunc(r.Stop, func(s string) bool { return !utf8.ValidString(s) }):
		return refuse("stop", errs.Invalid, "bytes that are no UTF-8", "UTF-8",
			"an answer ends between characters")
	case slices.ContainsFunc(r.Stop, func(s string) bool { return len(s) > stopMost }):
		return refuse("stop", errs.TooLarge, "a longer text",
			fmt.Sprintf("texts of at most %d bytes", stopMost), "")
	case r.Top < 0 || r.Top > topMost:
		return refuse("top-logprobs", beyond(r.Top), r.Top, fmt.Sprintf("0 to %d", topMost), "")
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
	case r.VideoAfter < 0 || r.VideoAfter > len(r.Images) || r.VideoAfter > 0 && r.Video == nil:
		return refuse("video-after", errs.Conflict, r.VideoAfter,
			fmt.Sprintf("0 to %d with a video", len(r.Images)), "pictures before the video")
	case r.NoCache && r.Salt != "":
		return refuse("cache-salt", errs.Useless, r.Salt, "", "without caches")
	}
	return nil
}

// dialogue holds the parts of a prompt.
type dialogue struct {
	messages []chat.Message
	question string     // text of the last question
	tokens   []int32    // used instead of messages
	pics     []*picture // in order
	added    int        // new pictures, at the end of pics
	forgot   uint64     // mark of a conversation that forgot what it had read
}

// dialogue reads a request into messages or tokens, and pictures.
func (e *Engine) dialogue(ctx context.Context, req *Request, d *dialogue) (err error) {
	if len(req.Messages) > 0 {
		return e.messages(ctx, req, d)
	}
	if err := e.pictures(ctx, req, d, len(req.Images)); err != nil {
		return err
	}
	if req.Tokens != nil {
		d.tokens = req.Tokens
		return e.checkTokens(req.Tokens)
	}
	if req.System != "" {
		if d.messages, err = e.system(req.System, nil); err != nil {
			return err
		}
	}
	d.question = req.Prompt
	question, err := userMessage(req.Prompt, d.pics, req.Places)
	d.messages = append(d.messages, question)
	return err
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
	total, all := 0, 0
	for _, m := range req.Messages {
		for i := range m.Parts {
			if m.Parts[i].Image != nil {
				all++
			}
		}
	}
	for _, m := range req.Messages {
		out := chat.Message{Role: m.Role}
		index := 0
		d.question = m.text()
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
			p, err := e.picture(ctx, part.Image, place{total, index, all}, o, req)
			if err != nil {
				return err
			}
			p.source = nil // which only conversations prepare again
			d.pics = append(d.pics, p)
			out.Content = append(out.Content, chat.Part{Type: "image"})
			total, index = total+1, index+1
		}
		d.messages = append(d.messages, out)
	}
	return nil
}

// pictures prepares the pictures of a question and adds them to d. all is how many pictures the
// prompt has.
func (e *Engine) pictures(ctx context.Context, req *Request, d *dialogue, all int) error {
	if req.Encoded != nil {
		before, err := methods.NewBefore(&req.Reduce)
		if err != nil {
			return err
		}
		for i, v := range req.Encoded.visuals {
			r := req.Encoded.pictures[i]
			if before != nil {
				im := *r.image
				im.key, im.before, r.image = beforeKey(im.key, before), before, &im
				if err := e.leaveOut(&r, before); err != nil {
					return err
				}
				if r.shape.Pruned != nil {
					v = nil // it saw all tokens
				}
			}
			p := &picture{image: r.image, visual: v, prepared: r.prepared, rgb: r.rgb, index: i}
			d.pics = append(d.pics, p)
			if err := e.resolve(p, &req.Reduce, req); err != nil {
				return err
			}
		}
		return nil
	}
	before := len(d.pics)
	for i := range len(req.Images) + 1 {
		if i == req.VideoAfter && req.Video != nil {
			if err := e.video(ctx, req, d, before); err != nil {
				return err
			}
		}
		if i == len(req.Images) {
			break
		}
		at := place{i, len(d.pics) - before, all}
		p, err := e.picture(ctx, req.Images[i], at, &req.Reduce, req)
		if err != nil {
			return err
		}
		d.pics = append(d.pics, p)
	}
	return nil
}

// video prepares the video of a question and adds its moments to d, whose pictures from the index
// before on are the question's.
func (e *Engine) video(ctx context.Context, req *Request, d *dialogue, before int) error {
	start := time.Now()
	made, err := e.prepare(ctx, e.videoTask(req.Video), 0)
	if err != nil {
		return err
	}
	for i, m := range made {
		p := &picture{
			image: m.image, prepared: m.prepared, video: req.Video, moment: i,
			index: len(d.pics) - before,
		}
		if i == 0 {
			p.spent.prepare = time.Since(start)
		}
		d.pics = append(d.pics, p)
		if err := e.resolve(p, &req.Reduce, req); err != nil {
			return err
		}
	}
	return nil
}

// place is the place of a picture: its index in the request and in its message, and how many
// pictures the prompt has.
type place struct{ i, index, all int }

// picture returns the picture of a request at that place, reduced by o. It is decoded and prepared
// unless the decoder's rows for it are cached.
func (e *Engine) picture(
	ctx context.Context, m *Image, at place, o *methods.Options, req *Request,
) (*picture, error) {
	if err := e.takesPictures(); err != nil {
		return nil, err
	}
	before, err := methods.NewBefore(o)
	if err != nil {
		return nil, err
	}
	start, as := time.Now(), e.as(m.key(), at.all, before)
	p, done := &picture{source: m, index: at.index}, false
	defer func() {
		if !done {
			e.leavePicture(p)
		}
	}()
	if !req.NoCache {
		if p.image = e.remembered(as.key); p.image != nil {
			if err := e.resolve(p, o, req); err != nil {
				return nil, err
			}
			if e.cached.get(p.entry) != nil {
				p.spent.prepare, done = time.Since(start), true
				return p, nil
			}
		}
	}
	known := p.image != nil
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if req.NoCache {
		p.shared = e.start(e.imageTask(m, as))
	} else {
		p.shared = e.shareOf(m, as, req.Salt)
	}
	made, err := p.shared.wait(ctx, at.i)
	if err != nil {
		return nil, err
	}
	p.image, p.prepared, p.rgb = made[0].image, made[0].prepared, made[0].rgb
	p.spent.prepare = max(0, time.Since(start)-p.shared.waited)
	if !known {
		if !req.NoCache {
			e.remember(p.image)
		}
		if err := e.resolve(p, o, req); err != nil {
			return nil, err
		}
	}
	done = true
	return p, nil
}

// resolve plans how p is reduced and takes p's entry in the feature cache.
func (e *Engine) resolve(p *picture, o *methods.Options, req *Request) (err error) {
	if p.shape.Video { // which is prepared in one way only
		b, err := methods.NewBefore(o)
		if b != nil {
			err = e.leaveOut(&ready{image: p.image, prepared: p.prepared}, b)
		}
		if err != nil {
			return err
		}
	}
	if p.planned, err = e.plan(p.shape, *o); err != nil {
		return err
	}
	key := e.featuresKey(p, req.Salt)
	p.id = e.rowsKey(p, key)
	if !req.NoCache {
		p.entry = e.cached.use(key)
		if e.cached.get(p.entry) == nil && !p.asks() {
			p.stored = e.restore(p, true)
		}
		if f := e.cached.get(p.entry); f != nil && p.late != nil && !p.asks() {
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
	if s := p.shared; s != nil {
		p.shared = nil
		e.unshare(s)
	}
}

// prepare lays out the prompt of s. The report leaves out pictures of earlier questions.
func (s *sequence) prepare(d dialogue) (err error) {
	e := s.e
	if s.sampler, err = sample.New(s.req.Sample); err != nil {
		return err
	}
	for id := range s.req.Sample.Bias {
		if int(id) >= e.shape.Vocab {
			return &errs.OptionError{Name: "logit-bias", Got: fmt.Sprint(id),
				Want: fmt.Sprintf("a token below %d", e.shape.Vocab), Fault: errs.TooLarge}
		}
	}
	if e.tok == nil && (d.tokens == nil || s.req.LogProbs || len(s.req.Stop) > 0) {
		return e.lacks(&e.ck.Parts().Tokenizer,
			"which questions, stop texts and log probabilities need")
	}
	ids := d.tokens
	if ids == nil {
		if ids, err = e.tokenize(d.messages, d.pics); err != nil {
			return err
		}
	}
	if s.units, err = e.units(ids, d.pics); err != nil && d.tokens == nil {
		return e.misplaced(err, d.pics)
	} else if err != nil {
		return err
	}
	for _, u := range s.units {
		if u.pic == nil {
			s.sampler.Read(u.id)
		}
	}
	if err := e.setWords(&d, ids, s.req.Salt); err != nil {
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
	pictures []ready
	visuals  []*model.Visual // nil for a picture that is not encoded yet
}

// Len returns the number of pictures.
func (s *Encoded) Len() int { return len(s.pictures) }

// Picture returns the i-th picture only.
func (s *Encoded) Picture(i int) *Encoded {
	return &Encoded{pictures: s.pictures[i : i+1], visuals: s.visuals[i : i+1]}
}

// reads returns the by-products of pictures that many methods read, and those that the methods of
// all of how read. Options that some picture does not allow are found when a request has them.
func (e *Engine) reads(pics []ready, how ...methods.Options) model.Needs {
	need := model.Needs{ClsAttn: true, Keys: true}
	for i := range pics {
		s := pics[i].prepared.Shape()
		need.Last = need.Last || !s.NoClass
		for _, o := range how {
			if planned, err := e.plan(s, o); err == nil {
				need = need.With(planned.need)
			}
		}
	}
	return need
}

// Encode prepares and encodes pictures, with everything that many methods and the ones in how read.
func (e *Engine) Encode(
	ctx context.Context, pics []*Image, how ...methods.Options,
) (*Encoded, error) {
	if err := e.takesPictures(); err != nil {
		return nil, err
	}
	out, shared := &Encoded{}, make([]*preparation, len(pics))
	for i, m := range pics {
		shared[i] = e.shareOf(m, e.as(m.key(), len(pics), nil), "")
		defer e.unshare(shared[i])
		made, err := shared[i].wait(ctx, i)
		if err != nil {
			return nil, err
		}
		out.pictures = append(out.pictures, made[0])
	}
	need := e.reads(out.pictures, how...)
	return out, e.Do(ctx, func(r *model.Run) error {
		for _, s := range shared {
			v, err := s.encode(e, r, need)
			if err != nil {
				return err
			}
			out.visuals = append(out.visuals, v)
		}
		return nil
	})
}

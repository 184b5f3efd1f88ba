package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

// Conversation is a dialogue about pictures. What it has read stays in the caches while there is
// memory, so each turn reads only its new part. The answers are the same as if everything were read
// again, but for the keys of earlier answers, which steps computed. What a method inside the
// decoder chose for one question holds for later ones; a method that reads the text after the
// encoder chooses again for each question. A Conversation is not safe for concurrent use.
type Conversation struct {
	e        *Engine
	options  methods.Options
	messages []chat.Message
	pics     []*picture
	turns    []turn
	forgot   uint64 // marks what was read since the last Forget; 0: none
}

// turn is the length of a dialogue before a question.
type turn struct{ messages, pics int }

// NewConversation starts a dialogue. o reduces all its pictures.
func (e *Engine) NewConversation(o methods.Options) *Conversation {
	return &Conversation{e: e, options: o}
}

// Undo removes the last question with its answer and its pictures. It returns false if there is
// none.
func (c *Conversation) Undo() bool {
	if len(c.turns) == 0 {
		return false
	}
	last := c.turns[len(c.turns)-1]
	c.turns = c.turns[:len(c.turns)-1]
	c.messages, c.pics = c.messages[:last.messages], c.pics[:last.pics]
	return true
}

// Forget makes the next question read the whole dialogue again.
func (c *Conversation) Forget() {
	c.forgot = c.e.marks.Add(1)
	for i, p := range c.pics {
		if p.inside == nil {
			continue
		}
		again := *p
		again.inside = nil
		if again.chosen > 0 {
			again.chosen, again.id = 0, c.e.unique()
		}
		c.pics[i] = &again
	}
}

// Ask answers the next question. An error, or a cancellation before the first token, leaves the
// dialogue unchanged.
func (c *Conversation) Ask(ctx context.Context, req Request) (*Answer, error) {
	j, d, err := c.submit(ctx, req)
	if err != nil {
		return cancelled(ctx, err)
	}
	ans, err := j.wait(req.OnPiece)
	if ans == nil || len(ans.Tokens) == 0 && err != nil {
		return ans, err
	}
	c.turns = append(c.turns, turn{len(c.messages), len(c.pics)})
	said := chat.Message{
		Role: "assistant", Content: []chat.Part{
			{Type: "text", Text: strings.TrimPrefix(ans.Text, " ")},
		},
	}
	c.messages, c.pics = append(d.messages, said), d.pics
	for _, p := range j.s.pics {
		if p.inside != nil {
			p.chosen = len(j.s.units)
		}
	}
	return ans, err
}

// ReadAhead reads what the next question begins with, so that its answer comes sooner: req is the
// question without text. The dialogue does not change. It reads nothing without pictures, without
// caches, and if the question decides which tokens stay.
func (c *Conversation) ReadAhead(ctx context.Context, req Request) error {
	if len(req.Images) == 0 && req.Video == nil || req.NoCache || c.options.ReadsText() ||
		c.options.Inside() {
		return nil
	}
	req.MaxTokens = 1
	j, _, err := c.submit(ctx, req)
	if err == nil {
		_, err = j.Answer()
	}
	return err
}

// submit puts the next question into the queue.
func (c *Conversation) submit(ctx context.Context, req Request) (j *Job, d dialogue, err error) {
	j, err = c.e.submit(&req, func() (s *sequence, err error) {
		s, d, err = c.sequence(ctx, req)
		return s, err
	})
	return j, d, err
}

// sequence prepares the next question, which was checked.
func (c *Conversation) sequence(ctx context.Context, req Request) (*sequence, dialogue, error) {
	refuse := func(name, got, why string) (*sequence, dialogue, error) {
		return nil, dialogue{}, fmt.Errorf("engine: %w", &errs.OptionError{
			Name: name, Got: got, Want: "none", Why: why, Fault: errs.Conflict,
		})
	}
	switch {
	case len(req.Messages) > 0 || req.Tokens != nil:
		return refuse("messages", "a dialogue of its own", "a conversation asks questions")
	case !reflect.DeepEqual(req.Reduce, methods.Options{}) &&
		!reflect.DeepEqual(req.Reduce, c.options):
		return refuse("reduction", "a reduction other than the conversation's",
			"a conversation reduces all its pictures in one way")
	}
	req.Reduce = c.options
	s := newSequence(c.e, ctx, &req)
	d := dialogue{pics: slices.Clone(c.pics), forgot: c.forgot}
	err := s.begin(&d, func() error { return c.question(ctx, s, &d) })
	return s, d, err
}

// question adds the question of s to the dialogue and prepares it.
func (c *Conversation) question(ctx context.Context, s *sequence, d *dialogue) (err error) {
	e, req := c.e, s.req
	all := len(req.Images)
	for _, p := range c.pics {
		if p.source != nil {
			all++
		}
	}
	if err := e.pictures(ctx, req, d, all); err != nil {
		return err
	}
	d.added = len(d.pics) - len(c.pics)
	if err := e.again(ctx, d.pics[:len(c.pics)], all, req); err != nil {
		return err
	}
	before := c.messages
	if req.System != "" {
		if before, err = e.system(req.System, before); err != nil {
			return err
		}
	}
	d.question = req.Prompt
	question, err := userMessage(req.Prompt, d.pics[len(c.pics):], req.Places)
	if err != nil {
		return err
	}
	d.messages = append(before[:len(before):len(before)], question)
	return s.prepare(*d)
}

// again prepares pictures of earlier questions whose features are no longer cached, and those that
// must be prepared in another way, because the prompt has all pictures now.
func (e *Engine) again(ctx context.Context, pics []*picture, all int, req *Request) (err error) {
	for i, p := range pics {
		start := time.Now()
		if p.source != nil && e.several != nil && p.several != (all > 1) {
			other, err := e.picture(ctx, p.source, place{i, p.index, all}, &req.Reduce, req)
			if err != nil {
				return err
			}
			pics[i] = other
			continue
		}
		if p.asks() { // its tokens are chosen again, for this question
			other := *p
			p = &other
			pics[i], p.tokens, p.inside = p, nil, nil
		}
		p.spent, p.stored, p.from = spent{}, "", ""
		if !req.NoCache {
			p.entry = e.cached.use(e.featuresKey(p, req.Salt))
			if e.cached.get(p.entry) != nil || !p.asks() && e.restore(p, true) != "" {
				continue
			}
		}
		var made []ready
		switch {
		case p.visual != nil:
			continue
		case p.video != nil:
			made, err = e.prepare(ctx, e.videoTask(p.video), 0)
		default:
			made, err = e.prepare(ctx, e.imageTask(p.source, way{p.key, p.several, p.before}), i)
		}
		if err != nil {
			return err
		}
		p.prepared, p.rgb = made[p.moment].prepared, made[p.moment].rgb
		p.spent.prepare = time.Since(start)
	}
	return nil
}

// system returns the messages that begin a dialogue with a system prompt. Later questions may
// repeat the same one.
func (e *Engine) system(text string, before []chat.Message) ([]chat.Message, error) {
	if e.tok == nil {
		return nil, e.lacks(&e.ck.Parts().Tokenizer, "which questions need")
	}
	refuse := func(got, want, why string) error {
		return fmt.Errorf("engine: %w", &errs.OptionError{
			Name: "system-prompt", Got: got, Want: want, Why: why, Fault: errs.Conflict,
		})
	}
	text = withoutMarks(text)
	m := chat.Message{Role: "system", Content: []chat.Part{{Type: "text", Text: text}}}
	if len(before) > 0 {
		if before[0].Role != m.Role || before[0].Content[0].Text != text {
			return nil, refuse(fmt.Sprintf("%.40q after the first question", text),
				"a system prompt with the first", "")
		}
		return before, nil
	}
	empty := chat.Message{Role: "user", Content: []chat.Part{{Type: "text"}}}
	without, err := e.tokenize([]chat.Message{empty}, nil)
	if err != nil {
		return nil, err
	}
	for _, probe := range []string{text, text + "."} { // either may be the template's default
		probed := chat.Message{Role: m.Role, Content: []chat.Part{{Type: "text", Text: probe}}}
		with, err := e.tokenize([]chat.Message{probed, empty}, nil)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(with, without) {
			return []chat.Message{m}, nil
		}
	}
	return nil, refuse(fmt.Sprintf("%.40q", text), "none",
		"the chat template ("+e.source+") has no place for one")
}

// Limits of a text, in bytes: many times the length of a text that fits into the context, so that
// tokens are not counted in vain, which takes a hundred times the text's memory.
const (
	textPerPosition = 64
	leastText       = 64 << 10
	mostText        = 8 << 20
)

// CheckText returns an error if a text of n bytes is far too long for the context.
func (e *Engine) CheckText(n int) error {
	most := min(max(textPerPosition*e.context, leastText), mostText)
	if n <= most {
		return nil
	}
	return fmt.Errorf("engine: %w",
		&errs.ContextError{Context: e.context, Bytes: n, MostBytes: most})
}

// tokenize renders messages and returns their ids, with one picture token for each picture. Text
// from users never becomes a control token.
func (e *Engine) tokenize(messages []chat.Message, pics []*picture) ([]int32, error) {
	text := 0
	for _, m := range messages {
		for _, p := range m.Content {
			text += len(p.Text)
		}
	}
	if err := e.CheckText(text); err != nil {
		return nil, err
	}
	video := slices.ContainsFunc(pics, func(p *picture) bool { return p.shape.Video })
	segs, err := e.templateOf(video).RenderSegments(messages, chat.Options{
		AddGenerationPrompt: true, SpecialTokens: e.special,
	})
	var refused *chat.RefusedError
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("engine: %w", &errs.OptionError{
			Name: "messages", Got: "a dialogue that the model's chat template refuses",
			Want: "one that it takes", Why: refused.Text,
		})
	}
	if err != nil {
		return nil, err
	}
	parts, err := e.fillMarks(segs)
	if err != nil {
		return nil, err
	}
	e.fillMoments(parts, pics)
	if err := e.frame(parts); err != nil {
		return nil, err
	}
	// As in transformers' ProcessorMixin, the tokenizer adds nothing to what a template has begun.
	bos := e.special["bos_token"]
	begun := bos != "" && len(parts) > 0 && !parts[0].User && strings.HasPrefix(parts[0].Text, bos)
	return e.tok.EncodeSegments(parts, tokenizer.EncodeOptions{AddSpecial: !begun})
}

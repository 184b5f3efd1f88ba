// Package api turns the bodies of API calls into requests, and answers into replies: what the HTTP
// server and batches share. Packages anthropic, ollama and
// openai parse their own forms with it.
package api

import (
	"bytes"
	"context"

	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/wire"
)

// Settings are the defaults and limits of calls.
type Settings struct {
	Aliases []string // more names of the model
	Presets []*Preset

	// Defaults of what a call omits. MaxTokens 0: up to the context's end.
	Sampling  restore.Sampling
	MaxTokens int
	Reduction *restore.Reduction
	Exact     bool // the budget of Reduction is not merely a default: Check refuses too many tokens
	seed      *int64
	system    string // where a call has no system prompt
	// DetailBudget reads a picture's detail as a budget; otherwise it has no effect.
	DetailBudget bool

	Pictures  restore.PictureOptions // how pictures are read
	MaxImages int                    // in a call
	Media     *media.Loader          // of pictures
	// Loaded is called for each picture that was loaded; may be nil.
	Loaded func(media.Source)
}

// Front answers calls with a service.
type Front struct {
	restore.Service
	Settings
	About *restore.Info

	preset  *Preset // nil: of the model's own name
	names   map[string]bool
	presets map[string]*Front
}

// NewFront returns a front of a service.
func NewFront(s restore.Service, o Settings) *Front {
	f := &Front{Service: s, Settings: o, About: s.Info(), names: map[string]bool{}}
	if o.Reduction != nil { // all its parameters by name
		if r, err := o.Reduction.Over(); err == nil { // otherwise calls are refused
			f.Reduction = r
		}
	}
	for _, name := range append([]string{f.About.ID}, o.Aliases...) {
		f.names[name], f.names[name+":latest"] = true, true
	}
	for _, p := range o.Presets {
		one := *f
		if s, err := p.over(f.Settings); err == nil { // otherwise Check refused it
			one.Settings, one.preset = s, p
		}
		if f.presets == nil {
			f.presets = map[string]*Front{}
		}
		for _, name := range []string{p.Name, p.Name + ":latest"} {
			f.names[name], f.presets[name] = true, &one
		}
	}
	return f
}

// CheckModel refuses the names of other models; "" accepts any.
func (f *Front) CheckModel(model string) error {
	if model == "" || f.names[model] {
		return nil
	}
	names := append([]string{f.About.ID}, f.Aliases...)
	for _, p := range f.Presets {
		names = append(names, p.Name)
	}
	return wire.New(http.StatusNotFound, "model_not_found", "model", "model: got %s, want %s",
		wire.Quote(model), strings.Join(names, ", "))
}

// Call is the body of a call: a request, and how to reply. Its request has all defaults.
type Call struct {
	*restore.Request // its Messages hold empty pictures until Load

	Model        string // "" if the body names none
	Stream       bool
	IncludeUsage bool
	// Idle says that there is no question: Whole(nil) is the reply.
	Idle bool

	// N is the number of choices; 0 is 1. Their seeds are consecutive.
	N int
	// Choice is the choice of the piece that Events convert, and Answers are those of all choices
	// once they are complete, if there are several.
	Choice  int
	Answers []*restore.Answer

	Ignored    []string   // fields that are not used
	Shown      []*Picture // in order
	FormatPath string     // path of the field with the schema
	Field      string     // of the question: messages, prompt or input
	// Temperature and TopP are the sampling's, also where they have no effect.
	Temperature, TopP float64

	Whole  func(a *restore.Answer) any // makes the whole reply
	Events Stream                      // makes the replies of a stream

	outer  layer // the object "restore" of the body
	seeded bool  // the body has a seed
}

// Stream converts an answer to messages, piece by piece.
type Stream interface {
	Begin() []Message
	Piece(p *restore.Piece) []Message
	End(a *restore.Answer) []Message
	Fail(e *wire.Error) []Message
}

// Message is one message of a stream.
type Message struct {
	Event string // type of the event; "" for none
	Data  any    // as JSON; nil with Text
	Text  string // instead of Data
}

// Content types of streams.
const (
	EventStream = "text/event-stream"
	LineStream  = "application/x-ndjson"
)

// Parse reads a body. The error is a *[wire.Error].
type Parse func(body []byte, f *Front) (*Call, error)

// Picture is a picture of a call.
type Picture struct {
	Path string // of the field with the URL
	URL  []byte // may be part of the body

	detail     string // auto, low, high or original; "" is auto
	detailPath string
	own        layer

	picture   *restore.Picture // of the request
	reduction *restore.Reduction
}

// NewCall returns a call with the front's defaults. field is the field of its question.
func NewCall(f *Front, field string) *Call {
	c := &Call{Request: &restore.Request{Sampling: f.Sampling}, Field: field}
	if f.seed != nil {
		c.Sampling.Seed, c.seeded = *f.seed, true
	}
	return c
}

// Unlimited is a MaxTokens of a call: the answer ends at the context's end.
const Unlimited = -1

// End notes the unread fields of the body and sets what depends on several fields. The error is a
// *[wire.Error].
func (c *Call) End(o *wire.Object, f *Front) error {
	Note(c, o)
	if err := o.Err(); err != nil {
		return err
	}
	switch c.MaxTokens {
	case 0:
		c.MaxTokens = f.MaxTokens
	case Unlimited:
		c.MaxTokens = 0
	}
	c.Temperature, c.TopP = c.Sampling.Temperature, c.Sampling.TopP
	switch {
	case c.Temperature == 0: // only penalties have an effect
		c.Sampling = restore.Sampling{Penalties: c.Sampling.Penalties}
	case !c.seeded: // so that the reply can name it
		c.Sampling.Seed = mathrand.Int64N(1 << 53)
	}
	if f.system != "" && len(c.Messages) > 0 && c.Messages[0].Role != restore.System {
		c.Messages = slices.Insert(c.Messages, 0, SystemMessage(f.system))
	}
	if c.NoCache {
		c.Salt = ""
	}
	err := f.CheckModel(c.Model)
	if err == nil {
		err = c.reduce(f.Reduction)
	}
	if e := c.Error(err); e != nil {
		return e
	}
	return err
}

// Draw sets the seed of a call that samples and whose body has none.
func (c *Call) Draw(seed uint64) {
	if !c.seeded && c.Sampling.Temperature > 0 {
		c.Sampling.Seed = int64(seed % (1 << 53))
	}
}

// Picture adds a picture to the call, whose URL is at path, and returns its part.
func (c *Call) Picture(url []byte, path string) (*Picture, restore.Part) {
	p := &Picture{Path: path, URL: url, picture: new(restore.Picture),
		reduction: new(restore.Reduction)}
	c.Shown = append(c.Shown, p)
	return p, restore.Part{Picture: p.picture, Reduction: p.reduction}
}

// SystemMessage is the message with a system prompt.
func SystemMessage(text string) restore.Message {
	return restore.Message{Role: restore.System, Parts: []restore.Part{{Text: text}}}
}

// Load loads the pictures that are part of the body, so that their errors are reported at once, and
// returns the bytes of their files and of all texts. The others are fetched when the request has
// its place in the queue. The call keeps no part of the body after that.
func (c *Call) Load(ctx context.Context, f *Front) (size int64, err error) {
	size = int64(len(c.Prompt))
	for _, m := range c.Messages {
		for _, p := range m.Parts {
			size += int64(len(p.Text))
		}
	}
	for _, p := range c.Shown {
		if media.Fetched(p.URL) {
			url := string(p.URL)
			p.URL = nil
			*p.picture = *restore.PictureFrom(func(ctx context.Context) ([]byte, error) {
				return f.fetch(ctx, p, []byte(url))
			}, &f.Pictures)
			continue
		}
		data, err := f.fetch(ctx, p, p.URL)
		if err != nil {
			return 0, err
		}
		p.URL = nil
		picture, err := restore.NewPicture(data, &f.Pictures)
		if err != nil {
			return 0, &FieldError{Path: p.Path, Err: err}
		}
		*p.picture = *picture
		size += int64(len(data))
	}
	return size, nil
}

// Forget drops the files of the pictures, which the service needs no longer.
func (c *Call) Forget() {
	for _, p := range c.Shown {
		p.URL, *p.picture = nil, restore.Picture{}
	}
}

// fetch loads the file of a picture.
func (f *Front) fetch(ctx context.Context, p *Picture, url []byte) ([]byte, error) {
	data, source, err := f.Media.Load(ctx, url)
	if err == nil && (bytes.HasPrefix(data, []byte("II*\x00")) ||
		bytes.HasPrefix(data, []byte("MM\x00*"))) { // which only commands read
		err = &errs.PictureError{Index: -1, Fault: errs.UnknownFormat, Err: errors.New("got TIFF")}
	}
	if err != nil {
		return nil, &FieldError{Path: p.Path, Err: err}
	}
	if f.Loaded != nil {
		f.Loaded(source)
	}
	return data, nil
}

// Answer answers a call that has a question.
func (f *Front) Answer(ctx context.Context, c *Call) (*restore.Answer, error) {
	_, err := c.Load(ctx, f)
	if err != nil {
		return nil, err
	}
	j, err := f.Submit(ctx, c)
	c.Forget()
	if err != nil {
		return nil, err
	}
	return j.Answer()
}

// NewID returns a new id that begins with prefix.
func NewID(prefix string) string { return prefix + rand.Text() }

// Now is the time of replies in Unix seconds.
func Now() int64 { return time.Now().Unix() }

package server

import (
	"net/http"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/openai"
	"github.com/restore-vlm/restore/internal/wire"
)

type status struct {
	Status string `json:"status"`
}

func (s *Server) live(x *exchange) { x.json(http.StatusOK, status{"ok"}) }

func (s *Server) health(x *exchange) {
	switch {
	case s.draining.Load():
		x.w.Header().Set("Connection", "close")
		x.fail(shuttingDown())
	case s.backend.Load() == nil:
		x.fail(loading())
	default:
		x.json(http.StatusOK, status{"ok"})
	}
}

func (s *Server) version(x *exchange) {
	x.json(http.StatusOK, struct {
		Version string `json:"version"`
		Go      string `json:"go"`
		Kernel  string `json:"kernel"`
	}{s.o.Version, runtime.Version(), s.o.Kernel})
}

// details maps a picture's detail to a budget.
type details struct {
	Low      int `json:"low"`
	High     int `json:"high"`
	Original int `json:"original"`
}

// Detail returns the budget of a picture of n tokens for a detail, or 0 if the detail sets none.
func Detail(detail string, n int) int {
	switch detail {
	case "low":
		return max(1, n/18)
	case "high":
		return max(1, n/3)
	case "original":
		return n
	}
	return 0
}

// modelObject is an entry of /v1/models.
type modelObject struct {
	ID           string   `json:"id"`
	Object       string   `json:"object"`
	Created      int64    `json:"created"`
	OwnedBy      string   `json:"owned_by"`
	Aliases      []string `json:"aliases"`
	Architecture struct {
		Input  []string `json:"input_modalities"`
		Output []string `json:"output_modalities"`
	} `json:"architecture"`
	MaxModelLen int `json:"max_model_len"`
	Meta        struct {
		Params int64 `json:"n_params"`
		Vocab  int   `json:"n_vocab"`
		Size   int64 `json:"size"`
	} `json:"meta"`
	Limits struct {
		Context        int   `json:"context"`
		MaxImages      int   `json:"max_images"`
		MaxImageBytes  int64 `json:"max_image_bytes"`
		MaxImagePixels int64 `json:"max_image_pixels"`
		MaxBodyBytes   int64 `json:"max_body_bytes"`
		Parallel       int   `json:"parallel"`
		Queue          int   `json:"queue"`
	} `json:"limits"`
	Defaults Defaults `json:"defaults"`
	Restore  struct {
		VisualTokens *int     `json:"visual_tokens"`
		Detail       *details `json:"detail"`
		Methods      []string `json:"methods"`
		Encoder      *Encoder `json:"encoder,omitempty"`
		Predict      predict  `json:"predict"`
	} `json:"restore"`
}

// predict estimates a question's time from earlier questions, and before the first one from Expect.
type predict struct {
	Encode float64 `json:"encode_ms"` // per picture, until its rows are ready
	Token  float64 `json:"token_ms"`  // per row of the prompt
	KV     int64   `json:"kv_bytes"`  // per row
}

// Expect sets the times to predict before any question was answered: milliseconds per picture until
// its rows are ready, and per row of the prompt.
func (s *Server) Expect(encode, row float64) {
	s.predictMu.Lock()
	defer s.predictMu.Unlock()
	s.predict.Encode, s.predict.Token = encode, row
}

// learn updates the predictions with an answer's times.
func (s *Server) learn(a *ask.Answer) {
	mix := func(old *float64, d time.Duration, n int) {
		v := float64(d.Microseconds()) / 1000 / float64(n)
		if *old > 0 {
			v = 0.8**old + 0.2*v
		}
		*old = v
	}
	s.predictMu.Lock()
	defer s.predictMu.Unlock()
	t := &a.Timings
	if n := len(a.Pictures); n > 0 && t.Encode > 0 {
		mix(&s.predict.Encode, t.Prepare+t.Encode+t.Select+t.Merge, n)
	}
	if n := a.Prompt - a.Cached; n > 8 && t.Prefill > 0 {
		mix(&s.predict.Token, t.Prefill, n)
	}
}

func (s *Server) predicted(i *Info) predict {
	s.predictMu.Lock()
	defer s.predictMu.Unlock()
	p := s.predict
	if p.Token == 0 { // not known: assume two operations per weight, 50 billion per second
		p.Token = 2 * float64(i.Params) / 50e6
	}
	p.KV = i.KVPerToken
	return p
}

func (s *Server) modelObject(i *Info) modelObject {
	m := modelObject{ID: i.ID, Object: "model", Created: i.Created.Unix(), OwnedBy: "restore",
		Aliases: append([]string{}, i.Aliases...), MaxModelLen: i.Context, Defaults: i.Defaults}
	m.Architecture.Input, m.Architecture.Output = []string{"text", "image"}, []string{"text"}
	m.Meta.Params, m.Meta.Vocab, m.Meta.Size = i.Params, i.Vocab, i.Size
	l := &m.Limits
	l.Context, l.MaxImages, l.MaxImageBytes, l.MaxImagePixels = i.Context, s.o.MaxImages,
		s.o.MaxImageBytes, s.o.MaxImagePixels
	l.MaxBodyBytes, l.Parallel, l.Queue = s.o.MaxBodyBytes, i.Parallel, i.Queue
	if n := i.VisualTokens; n > 0 {
		m.Restore.VisualTokens = &n
		m.Restore.Detail = &details{Detail("low", n), Detail("high", n), Detail("original", n)}
	}
	m.Restore.Methods = append([]string{}, i.Methods...)
	m.Restore.Encoder = i.Encoder
	m.Restore.Predict = s.predicted(i)
	return m
}

func (s *Server) listModels(x *exchange) {
	x.json(http.StatusOK, struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", []modelObject{s.modelObject(s.backend.Load().info)}})
}

func (s *Server) oneModel(x *exchange) {
	b := s.backend.Load()
	id := strings.TrimSuffix(strings.TrimPrefix(x.r.URL.Path, "/v1/models/"), "/")
	if e := b.check(id); e != nil {
		x.fail(e)
		return
	}
	x.json(http.StatusOK, s.modelObject(b.info))
}

// check refuses the names of other models; "" accepts any.
func (b *served) check(model string) *wire.Error {
	if model == "" || b.names[model] {
		return nil
	}
	return wire.New(http.StatusNotFound, "model_not_found", "model", "model: got %s, want %s",
		wire.Quote(model), strings.Join(append([]string{b.info.ID}, b.info.Aliases...), ", "))
}

// env returns the limits that the checks of bodies need.
func (s *Server) env(b *served) *openai.Env {
	return &openai.Env{
		Model:      b.info.ID,
		MaxImages:  s.o.MaxImages,
		Vocab:      b.info.Vocab,
		Parameters: b.info.Parameters,
	}
}

// tokenize answers with the tokens of a text, or counts the tokens of a chat.
func (s *Server) tokenize(x *exchange) {
	x.handle("messages", func(b *served, body []byte) (*ask.Request, error) {
		o, err := wire.Parse(body)
		if err != nil {
			return nil, err
		}
		if err := modelOf(o, b); err != nil {
			return nil, err
		}
		if o.Has("messages") {
			r := openai.ParseMessages(o, s.env(b))
			if err := o.Err(); err != nil {
				return nil, err
			}
			return r, s.countMessages(x, b, r)
		}
		return nil, s.tokenizeText(x, b, o)
	})
}

// modelOf refuses a body that names another model.
func modelOf(o *wire.Object, b *served) error {
	name := o.String("model")
	if err := o.Err(); err != nil {
		return err
	}
	if e := b.check(name); e != nil {
		return e
	}
	return nil
}

func (s *Server) countMessages(x *exchange, b *served, r *ask.Request) error {
	var c *ask.Count
	err := x.loaded(r, func() (err error) {
		c, err = b.Count(x.ctx, r)
		return err
	})
	if err != nil {
		return err
	}
	x.json(http.StatusOK, struct {
		Count       int            `json:"count"`
		ImageTokens int            `json:"image_tokens"`
		MaxModelLen int            `json:"max_model_len"`
		Restore     *ask.Extension `json:"restore"`
	}{c.Prompt, c.Image, b.info.Context, c.Extend(r)})
	return nil
}

type piece struct {
	ID    int32 `json:"id"`
	Piece any   `json:"piece"` // a string, or bytes that are not UTF-8
}

func (s *Server) tokenizeText(x *exchange, b *served, o *wire.Object) error {
	field := "content"
	if !o.Has(field) && o.Has("prompt") {
		field = "prompt"
	}
	o.Require(field, "a string, or messages")
	text := o.String(field)
	opts := TokenizeOptions{
		AddSpecial:   o.Bool("add_special"),
		ParseSpecial: o.Bool("parse_special"),
	}
	pieces := o.Bool("with_pieces")
	if err := o.Err(); err != nil {
		return err
	}
	tokens, err := b.Tokenize(text, opts)
	if err != nil {
		if e := requestError(err, nil, field); e != nil {
			return e
		}
		return wire.Bad("invalid_value", field, "%v", err)
	}
	list := make([]any, len(tokens))
	for i, t := range tokens {
		switch {
		case !pieces:
			list[i] = t.ID
		case utf8.Valid(t.Bytes):
			list[i] = piece{t.ID, string(t.Bytes)}
		default:
			numbers := make([]int, len(t.Bytes))
			for j, c := range t.Bytes {
				numbers[j] = int(c)
			}
			list[i] = piece{t.ID, numbers}
		}
	}
	x.json(http.StatusOK, struct {
		Tokens      []any `json:"tokens"`
		Count       int   `json:"count"`
		MaxModelLen int   `json:"max_model_len"`
	}{list, len(list), b.info.Context})
	return nil
}

// leastDetokenize is how many tokens may become text in one request, if the context is not longer:
// a token may stand for hundreds of bytes.
const leastDetokenize = 1 << 16

func (s *Server) detokenize(x *exchange) {
	x.handle("tokens", func(b *served, body []byte) (*ask.Request, error) {
		o, err := wire.Parse(body)
		if err != nil {
			return nil, err
		}
		if err := modelOf(o, b); err != nil {
			return nil, err
		}
		o.Require("tokens", "a list of token ids")
		l := o.List("tokens")
		if most := max(leastDetokenize, b.info.Context); l.Len() > most {
			o.Fail("invalid_value", "tokens", "got %d tokens, want at most %d", l.Len(), most)
			return nil, o.Err()
		}
		ids := openai.Tokens(l, s.env(b))
		if err := o.Err(); err != nil {
			return nil, err
		}
		x.json(http.StatusOK, struct {
			Content string `json:"content"`
		}{b.Detokenize(ids)})
		return nil, nil
	})
}

// ollamaDetails describes a model in Ollama's format.
type ollamaDetails struct {
	Format   string   `json:"format"`
	Family   string   `json:"family"`
	Families []string `json:"families"`
	Size     string   `json:"parameter_size"`
	Quant    string   `json:"quantization_level"`
}

type ollamaModel struct {
	Name       string        `json:"name"`
	Model      string        `json:"model"`
	ModifiedAt time.Time     `json:"modified_at"`
	Size       int64         `json:"size"`
	Digest     string        `json:"digest"`
	Details    ollamaDetails `json:"details"`
}

func newOllamaDetails(i *Info) ollamaDetails {
	return ollamaDetails{i.Format, i.Family, []string{i.Family}, parameterSize(i.Params), i.Quant}
}

// parameterSize formats a number of weights as Ollama does: 7.1B, 4.1M.
func parameterSize(n int64) string {
	for _, u := range []struct {
		unit string
		n    float64
	}{{"B", 1e9}, {"M", 1e6}, {"K", 1e3}} {
		if float64(n) >= u.n {
			return strconv.FormatFloat(float64(n)/u.n, 'f', 1, 64) + u.unit
		}
	}
	return strconv.FormatInt(n, 10)
}

func newOllamaModel(i *Info) ollamaModel {
	name := i.ID + ":latest"
	return ollamaModel{name, name, i.Created.UTC(), i.Size, i.Digest, newOllamaDetails(i)}
}

func (s *Server) ollamaTags(x *exchange) {
	x.json(http.StatusOK, struct {
		Models []ollamaModel `json:"models"`
	}{[]ollamaModel{newOllamaModel(s.backend.Load().info)}})
}

func (s *Server) ollamaPS(x *exchange) {
	i := s.backend.Load().info
	type running struct {
		ollamaModel
		ExpiresAt time.Time `json:"expires_at"`
		SizeVRAM  int64     `json:"size_vram"`
		Context   int       `json:"context_length"`
	}
	x.json(http.StatusOK, struct {
		Models []running `json:"models"`
	}{[]running{{newOllamaModel(i), time.Now().AddDate(100, 0, 0).UTC(), 0, i.Context}}})
}

// semantic is a semantic version, which Ollama's clients parse.
var semantic = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$`)

// ollamaVersion reports a build without a version as Ollama does, as 0.0.0.
func (s *Server) ollamaVersion(x *exchange) {
	v := strings.TrimPrefix(s.o.Version, "v")
	if !semantic.MatchString(v) {
		v = "0.0.0"
	}
	x.json(http.StatusOK, struct {
		Version string `json:"version"`
	}{v})
}

func (s *Server) ollamaShow(x *exchange) {
	x.handle("model", func(b *served, body []byte) (*ask.Request, error) {
		o, err := wire.Parse(body)
		if err != nil {
			return nil, err
		}
		name := o.String("model")
		if name == "" {
			name = o.String("name")
		}
		if err := o.Err(); err != nil {
			return nil, err
		}
		if e := b.ollamaCheck(name); e != nil {
			return nil, e
		}
		i := b.info
		x.json(http.StatusOK, struct {
			Modelfile    string         `json:"modelfile"`
			Parameters   string         `json:"parameters"`
			Template     string         `json:"template"`
			Details      ollamaDetails  `json:"details"`
			ModelInfo    map[string]any `json:"model_info"`
			Capabilities []string       `json:"capabilities"`
			ModifiedAt   time.Time      `json:"modified_at"`
		}{"FROM " + i.ID + "\n", parameters(&i.Defaults), i.Template, newOllamaDetails(i),
			map[string]any{
				"general.architecture":       i.Family,
				"general.parameter_count":    i.Params,
				i.Family + ".context_length": i.Context,
			}, []string{"completion", "vision"}, i.Created.UTC()})
		return nil, nil
	})
}

// parameters lists the defaults, one per line.
func parameters(d *Defaults) string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return "temperature " + f(d.Temperature) + "\ntop_k " + strconv.Itoa(d.TopK) + "\ntop_p " +
		f(d.TopP) + "\nmin_p " + f(d.MinP)
}

// ollamaCheck is check with Ollama's error text.
func (b *served) ollamaCheck(model string) *wire.Error {
	if b.check(model) == nil {
		return nil
	}
	return wire.New(http.StatusNotFound, "model_not_found", "model", "model %s not found",
		wire.Quote(model))
}

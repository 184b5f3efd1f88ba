package server

import (
	"encoding/json"
	"net/http"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/anthropic"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/ollama"
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
	case s.front.Load() == nil:
		x.fail(loading())
	default:
		x.json(http.StatusOK, status{"ok"})
	}
}

func (s *Server) version(x *exchange) {
	x.json(http.StatusOK, versions{s.o.Version, runtime.Version(), s.o.Kernel})
}

type versions struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Kernel  string `json:"kernel"`
}

// details maps a picture's detail to a budget.
type details struct {
	Low      int `json:"low"`
	High     int `json:"high"`
	Original int `json:"original"`
}

// defaults apply to fields that a request omits.
type defaults struct {
	Temperature float64            `json:"temperature"`
	TopP        float64            `json:"top_p"`
	TopK        int                `json:"top_k"`
	MinP        float64            `json:"min_p"`
	Restore     *restore.Reduction `json:"restore"`
}

func newDefaults(f *api.Front) defaults {
	p := &f.Sampling
	return defaults{p.Temperature, p.TopP, p.TopK, p.MinP, f.Reduction}
}

// modelObject is an entry of /v1/models.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	anthropicModel
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
	Defaults defaults `json:"defaults"`
	Restore  struct {
		VisualTokens *int     `json:"visual_tokens"`
		Detail       *details `json:"detail"`
		presetFields
		Methods []string         `json:"methods"`
		About   []methodObject   `json:"about_methods"` // none, then Methods
		Encoder *restore.Encoder `json:"encoder,omitempty"`
		Predict predict          `json:"predict"`
	} `json:"restore"`
}

// anthropicModel has the fields of a model that Anthropic's clients read besides its id.
type anthropicModel struct {
	Type      string    `json:"type"`
	Name      string    `json:"display_name"`
	CreatedAt time.Time `json:"created_at"`
	Lifecycle string    `json:"lifecycle"`
}

// methodObject describes a method for people.
type methodObject struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Summary string `json:"summary"`
	Budget  bool   `json:"budget"`        // it takes one, as n_vis
	Each    bool   `json:"each_question"` // it chooses tokens for each question
	Least   *int   `json:"least"`         // visual tokens; 0: not with this model; nil: not known
}

// aboutMethods describes the methods that a model may use.
func aboutMethods(f *api.Front) []methodObject {
	var out []methodObject
	for _, m := range restore.Methods() {
		o := methodObject{Name: m.Name, Title: m.Title, Summary: m.Summary,
			Budget: m.TakesBudget(), Each: m.EachQuestion()}
		if s, ok := f.Service.(bounded); ok && f.About.VisualTokens > 0 {
			n := s.LeastTokens(m.Name)
			o.Least = &n
		}
		out = append(out, o)
	}
	return out
}

// presetFields describe a preset among models.
type presetFields struct {
	Of     string          `json:"preset_of,omitempty"` // the model's id
	Preset json.RawMessage `json:"preset,omitempty"`    // its fields, as written
}

func newPresetFields(f *api.Front) (p presetFields) {
	if preset := f.Preset(); preset != nil {
		p.Of, p.Preset = f.About.ID, preset.Fields
	}
	return p
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
func (s *Server) learn(a *restore.Answer) {
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
	if n := a.Usage.Prompt - a.Usage.Cached; n > 8 && t.Prefill > 0 {
		mix(&s.predict.Token, t.Prefill, n)
	}
}

func (s *Server) predicted(i *restore.Info) predict {
	s.predictMu.Lock()
	defer s.predictMu.Unlock()
	p := s.predict
	if p.Token == 0 { // not known: assume two operations per weight, 50 billion per second
		p.Token = 2 * float64(i.Params) / 50e6
	}
	p.KV = i.KVPerToken
	return p
}

func (s *Server) modelObject(f *api.Front, about []methodObject) modelObject {
	i := f.About
	m := modelObject{ID: f.Name(), Object: "model", Created: i.Created.Unix(), OwnedBy: "restore",
		anthropicModel: anthropicModel{"model", f.Name(), i.Created.UTC(), "active"},
		Aliases:        []string{}, MaxModelLen: i.Context, Defaults: newDefaults(f)}
	if f.Preset() == nil {
		m.Aliases = append(m.Aliases, f.Aliases...)
	}
	m.Restore.presetFields = newPresetFields(f)
	m.Architecture.Input, m.Architecture.Output = []string{"text", "image"}, []string{"text"}
	m.Meta.Params, m.Meta.Vocab, m.Meta.Size = i.Params, i.Vocab, i.Bytes
	l := &m.Limits
	l.Context, l.MaxImages, l.MaxImageBytes, l.MaxImagePixels = i.Context, f.MaxImages,
		f.Pictures.MaxBytes, f.Pictures.MaxPixels
	l.MaxBodyBytes, l.Parallel, l.Queue = s.o.MaxBodyBytes, i.Parallel, i.Queue
	if n := i.VisualTokens; n > 0 {
		m.Restore.VisualTokens = &n
		if f.DetailBudget {
			m.Restore.Detail = &details{api.DetailBudget("low", n), api.DetailBudget("high", n),
				api.DetailBudget("original", n)}
		}
	}
	m.Restore.About = about
	for _, method := range about[1:] { // without none
		m.Restore.Methods = append(m.Restore.Methods, method.Name)
	}
	m.Restore.Encoder = i.Encoder
	m.Restore.Predict = s.predicted(i)
	return m
}

func (s *Server) listModels(x *exchange) {
	var list []modelObject
	front := s.front.Load()
	about := aboutMethods(front)
	for _, f := range front.Each() {
		list = append(list, s.modelObject(f, about))
	}
	x.json(http.StatusOK, modelList{"list", list, false, list[0].ID, list[len(list)-1].ID})
}

// modelList is the whole list. Its last three fields are for Anthropic's clients.
type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
	More   bool          `json:"has_more"`
	First  string        `json:"first_id"`
	Last   string        `json:"last_id"`
}

func (s *Server) oneModel(x *exchange) {
	f := s.front.Load()
	if err := f.CheckModel(x.param); err != nil {
		x.fail(s.toWire(err, nil, x.id))
		return
	}
	x.json(http.StatusOK, s.modelObject(f.Named(x.param), aboutMethods(f)))
}

// tokenize answers with the tokens of a text, or counts the tokens of a chat.
func (s *Server) tokenize(x *exchange) {
	x.handle(func(f *api.Front, body []byte) (*api.Call, error) {
		o, err := wire.Parse(body)
		if err != nil {
			return nil, err
		}
		if err := modelOf(o, f); err != nil {
			return nil, err
		}
		if f = f.Named(o.String("model")); o.Has("messages") {
			c := openai.ParseMessages(o, f)
			c.Whole = func(a *restore.Answer) any {
				n := &a.Usage
				return chatTokens{n.Prompt, n.Image, f.About.Context, c.Extend(a)}
			}
			if err := c.End(o, f); err != nil {
				return nil, err
			}
			return c, countMessages(x, f, c)
		}
		return nil, s.tokenizeText(x, f, o)
	})
}

// modelOf refuses a body that names another model.
func modelOf(o *wire.Object, f *api.Front) error {
	name := o.String("model")
	if err := o.Err(); err != nil {
		return err
	}
	return f.CheckModel(name)
}

// countTokens answers with the number of tokens of a chat, as Anthropic does.
func countTokens(x *exchange) {
	x.handle(func(f *api.Front, body []byte) (*api.Call, error) {
		c, err := anthropic.ParseCount(body, f)
		if err != nil {
			return nil, err
		}
		return c, countMessages(x, f, c)
	})
}

// countMessages answers with the size of a call's prompt.
func countMessages(x *exchange, f *api.Front, c *api.Call) error {
	var a *restore.Answer
	err := x.loaded(f, c, func() (err error) {
		a, err = f.Count(x.ctx, c.Request)
		return err
	})
	if err != nil {
		return err
	}
	x.json(http.StatusOK, c.Whole(a))
	return nil
}

// chatTokens counts the tokens of a chat.
type chatTokens struct {
	Count       int            `json:"count"`
	ImageTokens int            `json:"image_tokens"`
	MaxModelLen int            `json:"max_model_len"`
	Restore     *api.Extension `json:"restore"`
}

// noTokens is the error for a service that does not tell tokens.
func noTokens() *wire.Error {
	return wire.New(http.StatusNotFound, "unknown_path", "",
		"the model behind this server does not tell tokens")
}

type piece struct {
	ID    int32 `json:"id"`
	Piece any   `json:"piece"` // a string, or bytes that are not UTF-8
}

func (s *Server) tokenizeText(x *exchange, f *api.Front, o *wire.Object) error {
	field := "content"
	if !o.Has(field) && o.Has("prompt") {
		field = "prompt"
	}
	o.Require(field, "a string, or messages")
	text := o.String(field)
	special, parse := o.Bool("add_special"), o.Bool("parse_special")
	pieces := o.Bool("with_pieces")
	o.Refuse(" with a text alone", "restore")
	if err := o.Err(); err != nil {
		return err
	}
	t, ok := f.Service.(tokenizer)
	if !ok {
		return noTokens()
	}
	tokens, err := t.Tokenize(text, special, parse)
	if err != nil {
		if e := (&api.Call{Field: field}).Error(err); e != nil {
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
	x.json(http.StatusOK, textTokens{list, len(list), f.About.Context})
	return nil
}

// textTokens are the tokens of a text.
type textTokens struct {
	Tokens      []any `json:"tokens"` // ids, or pieces
	Count       int   `json:"count"`
	MaxModelLen int   `json:"max_model_len"`
}

// leastDetokenize is how many tokens may become text in one request, if the context is not longer:
// a token may stand for hundreds of bytes.
const leastDetokenize = 1 << 16

func (s *Server) detokenize(x *exchange) {
	x.handle(func(f *api.Front, body []byte) (*api.Call, error) {
		o, err := wire.Parse(body)
		if err != nil {
			return nil, err
		}
		if err := modelOf(o, f); err != nil {
			return nil, err
		}
		o.Require("tokens", "a list of token ids")
		l := o.List("tokens")
		if most := max(leastDetokenize, f.About.Context); l.Len() > most {
			o.Fail("invalid_value", "tokens", "got %d tokens, want at most %d", l.Len(), most)
			return nil, o.Err()
		}
		ids := openai.Tokens(l, f)
		if err := o.Err(); err != nil {
			return nil, err
		}
		t, ok := f.Service.(tokenizer)
		if !ok {
			return nil, noTokens()
		}
		x.json(http.StatusOK, content{t.Detokenize(ids)})
		return nil, nil
	})
}

type content struct {
	Content string `json:"content"`
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
	Restore    *presetFields `json:"restore,omitempty"` // of a preset
}

func newOllamaDetails(i *restore.Info) ollamaDetails {
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

func newOllamaModel(f *api.Front) ollamaModel {
	i, name := f.About, f.Name()+":latest"
	m := ollamaModel{name, name, i.Created.UTC(), i.Bytes, i.Digest, newOllamaDetails(i), nil}
	if p := newPresetFields(f); p.Of != "" {
		m.Restore = &p
	}
	return m
}

func (s *Server) ollamaTags(x *exchange) {
	var list []ollamaModel
	for _, f := range s.front.Load().Each() {
		list = append(list, newOllamaModel(f))
	}
	x.json(http.StatusOK, ollamaModels{list})
}

type ollamaModels struct {
	Models []ollamaModel `json:"models"`
}

// ollamaRunning are the models in memory.
type ollamaRunning struct {
	Models []running `json:"models"`
}

type running struct {
	ollamaModel
	ExpiresAt time.Time `json:"expires_at"`
	SizeVRAM  int64     `json:"size_vram"`
	Context   int       `json:"context_length"`
}

func (s *Server) ollamaPS(x *exchange) {
	f := s.front.Load()
	x.json(http.StatusOK, ollamaRunning{
		[]running{{newOllamaModel(f), time.Now().AddDate(100, 0, 0).UTC(), 0, f.About.Context}},
	})
}

// semantic is a semantic version, which Ollama's clients parse.
var semantic = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$`)

// ollamaVersion reports a build without a version as Ollama does, as 0.0.0.
func (s *Server) ollamaVersion(x *exchange) {
	v := strings.TrimPrefix(s.o.Version, "v")
	if !semantic.MatchString(v) {
		v = "0.0.0"
	}
	x.json(http.StatusOK, ollamaVersion{v})
}

type ollamaVersion struct {
	Version string `json:"version"`
}

func (s *Server) ollamaShow(x *exchange) {
	x.handle(func(f *api.Front, body []byte) (*api.Call, error) {
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
		if f.CheckModel(name) != nil {
			return nil, ollama.NotFound(name)
		}
		f = f.Named(name)
		i := f.About
		x.json(http.StatusOK, ollamaShown{"FROM " + i.ID + "\n", parameters(f), i.Template,
			newOllamaDetails(i), map[string]any{
				"general.architecture":       i.Family,
				"general.parameter_count":    i.Params,
				i.Family + ".context_length": i.Context,
			}, []string{"completion", "vision"}, i.Created.UTC()})
		return nil, nil
	})
}

// ollamaShown describes a model as /api/show does.
type ollamaShown struct {
	Modelfile    string         `json:"modelfile"`
	Parameters   string         `json:"parameters"`
	Template     string         `json:"template"`
	Details      ollamaDetails  `json:"details"`
	ModelInfo    map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
	ModifiedAt   time.Time      `json:"modified_at"`
}

// parameters lists the defaults, one per line.
func parameters(front *api.Front) string {
	d := newDefaults(front)
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return "temperature " + f(d.Temperature) + "\ntop_k " + strconv.Itoa(d.TopK) + "\ntop_p " +
		f(d.TopP) + "\nmin_p " + f(d.MinP)
}

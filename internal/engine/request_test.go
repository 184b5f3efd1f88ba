package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

func user(parts ...Part) Message { return Message{Role: "user", Parts: parts} }

func says(role, text string) Message { return Message{Role: role, Parts: []Part{{Text: text}}} }

func shows(p *imageproc.Picture) Part { return Part{Image: &Image{Picture: p}} }

var half = methods.Options{Base: "holov", NVis: 64, Restore: true}

// Ensure that a dialogue in messages gets the same answers as a conversation, turn by turn, and one
// message the same answer as a question.
func TestMessages(t *testing.T) {
	e := opened(t, Options{})
	pic := drawn(t, 7)
	ask := func(r Request) *Answer {
		t.Helper()
		r.Reduce, r.MaxTokens = half, 12
		a, err := e.Ask(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	question := ask(Request{Prompt: "What number is written?", Images: Pictures(pic)})
	messages := []Message{user(shows(pic), Part{Text: "What number is written?"})}
	first := ask(Request{Messages: messages})
	if first.Text != question.Text || first.Report.PromptTokens != question.Report.PromptTokens {
		t.Errorf("one message %q, a question %q", first.Text, question.Text)
	}
	c := e.NewConversation(half)
	for i, text := range []string{
		"What number is written?", "How many objects are there?", "Describe the image.",
	} {
		r := Request{Prompt: text, MaxTokens: 12}
		if i == 0 {
			r.Images = Pictures(pic)
		} else {
			messages = append(messages, user(Part{Text: text}))
		}
		want, err := c.Ask(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		got := ask(Request{Messages: messages})
		if got.Text != want.Text || got.Report.PromptTokens != want.Report.PromptTokens {
			t.Errorf("turn %d: messages %q, conversation %q", i, got.Text, want.Text)
		}
		if i > 0 && (got.Report.Images[0].Cache != FromPrefix || len(got.Report.Images) != 1) {
			t.Errorf("turn %d: %+v", i, got.Report.Images)
		}
		messages = append(messages, says("assistant", strings.TrimPrefix(want.Text, " ")))
	}
}

// Ensure that pictures keep their own options, as files and as pixels, that a known file is not
// decoded again, and that the report is right.
func TestPicturesOfTheirOwn(t *testing.T) {
	e := opened(t, Options{})
	data := scene.New(4).PNG()
	own := methods.Options{Base: "divprune", NVis: 30}
	image := func() Part {
		return Part{
			Image: &Image{File: data, Decode: imageproc.DecodeOptions{EXIF: true}}, Reduce: &own,
		}
	}
	r := Request{Reduce: half, MaxTokens: 3, Messages: []Message{
		says("system", "Answer."), user(shows(drawn(t, 3)), Part{Text: "and"}, image(), Part{
			Text: "What is there?",
		}),
	}}
	a, err := e.Ask(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	images := a.Report.Images
	if len(images) != 2 || images[0].Kept != 32 || images[0].Merged != 32 || images[1].Kept != 30 ||
		images[1].Merged != 0 || images[1].Options.Base != "divprune" ||
		images[1].Width != 336 || images[1].Height != 336 {
		t.Fatalf("%+v", images)
	}
	if a.Report.ImageTokens != 94 || a.Report.PromptTokens <= 94 {
		t.Errorf("%d rows of pictures in %d", a.Report.ImageTokens, a.Report.PromptTokens)
	}
	n, err := e.Count(context.Background(), r)
	if err != nil || n.PromptTokens != a.Report.PromptTokens || n.ImageTokens != 94 ||
		n.Images[1].Kept != 30 || n.GeneratedTokens != 0 {
		t.Errorf("counted %+v, %v", n, err)
	}
	known := e.remembered((&Image{File: data, Decode: imageproc.DecodeOptions{EXIF: true}}).key())
	if known == nil {
		t.Fatal("the file was not remembered")
	}
	known.width = 1 // a picture that is decoded again would not have this width
	again, err := e.Ask(context.Background(), Request{
		MaxTokens: 1, Messages: []Message{user(image(), Part{Text: "Where?"})},
	})
	if err != nil || again.Report.Images[0].Width != 1 ||
		again.Report.Images[0].Cache != FromFeatures {
		t.Errorf("a known file: %+v, %v", again, err)
	}
	for i, bad := range []*Image{{File: []byte("GIF89a")}, {File: []byte{}}, {}} {
		var fault *errs.PictureError
		_, err := e.Ask(context.Background(), Request{
			Messages: []Message{user(shows(drawn(t, 1)), Part{Image: bad}, Part{Text: "?"})},
		})
		if !errors.As(err, &fault) || fault.Index != 1 {
			t.Errorf("bad picture %d: %v", i, err)
		}
	}
	other := methods.Options{Base: "holov", NVis: 64, Restore: true, Calibrate: "size"}
	var option *errs.OptionError
	_, err = e.Ask(context.Background(), Request{
		Reduce: half, Messages: []Message{
			user(shows(drawn(t, 1)), Part{Image: &Image{Picture: drawn(t, 2)}, Reduce: &other},
				Part{Text: "?"}),
		},
	})
	if !errors.As(err, &option) || option.Fault != errs.Conflict {
		t.Errorf("two distance calibrations: %v", err)
	}
}

// Ensure that tokens are read as given: a question's tokens give the question's answer.
func TestTokens(t *testing.T) {
	e := opened(t, Options{})
	r := Request{
		Prompt: "Describe the image.", Images: Pictures(drawn(t, 2)), Reduce: half,
		MaxTokens: 15,
	}
	s, err := e.sequence(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	s.release()
	var ids []int32
	for _, u := range s.units {
		if u.pic != nil {
			u.id = e.m.ImageToken()
		}
		ids = append(ids, u.id)
	}
	want, err := e.Ask(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Prompt, r.Tokens = "", ids
	got, err := e.Ask(context.Background(), r)
	if err != nil || got.Text != want.Text {
		t.Errorf("%v, %v, want %q", got, err, want.Text)
	}
	var option *errs.OptionError
	for _, bad := range [][]int32{{}, {1, -1}, {1 << 20}} {
		if _, err := e.Ask(context.Background(), Request{Tokens: bad}); !errors.As(err, &option) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// Ensure that a stop text is found across tokens, that no part of one is sent, that ordinary text
// is, and that the right one of several stop texts counts.
func TestStop(t *testing.T) {
	e := opened(t, Options{})
	r := Request{
		Prompt: "Describe the image.", Images: Pictures(drawn(t, 6)), Reduce: half,
	}
	whole, err := e.Ask(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Text
	n := len(text)
	for name, stops := range map[string][]string{
		"in the middle":          {text[n/2 : n/2+5]},
		"one letter":             {text[n/3 : n/3+1]},
		"long":                   {text[n/4 : 3*n/4]},
		"first of two":           {text[n/2 : n/2+4], text[n/4 : n/4+4]},
		"nested":                 {text[n/4 : n/2], text[n/4+2 : n/4+5]},
		"never":                  {"no such text", text[n-3:] + "!"},
		"begins and goes on":     {text[5:20] + "?", text[n/2:n/2+9] + "?"},
		"the end":                {text[n-4:]},
		"at once":                {text[:1]},
		"everything":             {text},
		"overlapping beginnings": {text[n/2:n/2+2] + text[n/2:n/2+2] + "x", text[n/2 : n/2+2]},
		"a beginning of another": {text[n/2:n/2+6] + "zzz", text[n/2+2 : n/2+5]},
	} {
		q := r
		q.Stop, q.LogProbs = stops, true
		var sent []string
		q.OnPiece = func(p Piece) {
			if p.Text != "" {
				sent = append(sent, p.Text)
			}
		}
		got, err := e.Ask(context.Background(), q)
		if err != nil {
			t.Fatal(name, err)
		}
		want := text // by characters: the first that is complete
		for end := 1; end <= n && want == text; end++ {
			at := -1
			for _, stop := range stops {
				if strings.HasSuffix(text[:end], stop) && (at < 0 || end-len(stop) < at) {
					at = end - len(stop)
				}
			}
			if at >= 0 {
				want = text[:at]
			}
		}
		if got.Text != want && !strings.HasPrefix(want, got.Text) { // a token may complete several
			t.Errorf("%s %q: got %q, want %q", name, stops, got.Text, want)
		}
		if (got.Stop == "") != (want == text) || !strings.HasPrefix(text, got.Text+got.Stop) ||
			got.Stop != "" && !slices.Contains(stops, got.Stop) {
			t.Errorf("%s: stopped by %q after %q", name, got.Stop, got.Text)
		}
		if joined := strings.Join(sent, ""); joined != got.Text {
			t.Errorf("%s: sent %q, want %q", name, joined, got.Text)
		}
		for _, s := range sent {
			if !utf8.ValidString(s) || s == "" {
				t.Errorf("%s: sent %q", name, sent)
			}
		}
		if got.Finish != FinishStop || len(got.Tokens) > len(whole.Tokens) {
			t.Errorf("%s: finish %q", name, got.Finish)
		}
		checkScored(t, got)
	}
	for _, bad := range [][]string{
		{""}, slices.Repeat([]string{"a"}, 17), {strings.Repeat("x", 257)},
	} {
		var option *errs.OptionError
		q := r
		if q.Stop = bad; true {
			if _, err := e.Ask(context.Background(), q); !errors.As(err, &option) ||
				option.Name != "stop" {
				t.Errorf("%d stops: %v", len(bad), err)
			}
		}
	}
}

// Ensure that an answer that was cut before its stop text does not name it.
func TestCutBeforeStop(t *testing.T) {
	e := opened(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	j, err := e.Submit(ctx, Request{
		Prompt: "Describe the image.", Images: Pictures(drawn(t, 6)), Reduce: half,
		Stop: []string{"at the"},
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := j.wait(func(Piece) {
		<-j.s.done
		cancel()
	})
	if !errors.Is(err, context.Canceled) || a.Finish != FinishCancelled || a.Stop != "" {
		t.Errorf("got %+v, %v", a, err)
	}
	if whole, err := j.Answer(); err != nil || whole.Stop != "at the" {
		t.Errorf("the whole: %+v, %v", whole, err)
	}
}

// checkScored checks that the bytes of all tokens, joined, are the text.
func checkScored(t *testing.T, a *Answer) {
	t.Helper()
	var joined []byte
	for _, s := range a.Scored {
		joined = append(joined, s.Bytes...)
		if !(s.LogProb <= 0) {
			t.Errorf("log probability %v of %q", s.LogProb, s.Bytes)
		}
	}
	if string(joined) != a.Text {
		t.Errorf("bytes of tokens %q, text %q", joined, a.Text)
	}
}

// Ensure that, if one token completes several stop texts, the one that begins first counts,
// letter by letter and in larger pieces, and that a possible beginning is held back.
func TestWriter(t *testing.T) {
	for _, c := range []struct {
		pieces []string
		stops  []string
		want   []string // the text of each piece, and of the end
	}{
		{[]string{"ab", "c", "d"}, nil, []string{"ab", "c", "d", ""}},
		{[]string{"a", "b", "c", "d"}, []string{"bc"}, []string{"a", "", "", "", ""}},
		{[]string{"a", "b", "x", "d"}, []string{"bc"}, []string{"a", "", "bx", "d", ""}},
		{[]string{"abcd"}, []string{"b", "abc"}, []string{"", ""}},
		{[]string{"xxabc"}, []string{"c", "b"}, []string{"xxa", ""}},
		{[]string{"a", "a", "a", "b"}, []string{"aab"}, []string{"", "", "a", "", ""}},
		{[]string{"en", "d"}, []string{"end!"}, []string{"", "", "end"}},
		{[]string{"é", "è"}, []string{"è"}, []string{"é", "", ""}},
	} {
		w := writer{stops: c.stops, stream: nil}
		var got []string
		for _, p := range c.pieces {
			if !w.done {
				w.add(p)
			}
			got = append(got, w.piece(false).Text)
		}
		got = append(got, w.piece(true).Text)
		if !slices.Equal(got, c.want) {
			t.Errorf("%q with %q: %q, want %q", c.pieces, c.stops, got, c.want)
		}
	}
}

// Ensure that characters split over tokens are complete in the text, that invalid bytes become
// U+FFFD, and that each token has its bytes of the text.
func TestWriterBytes(t *testing.T) {
	var vocab []string
	for i := range 256 {
		vocab = append(vocab, fmt.Sprintf(`"<0x%02X>":%d`, i, i))
	}
	tok, err := tokenizer.Parse([]byte(`{"model":{"type":"BPE","byte_fallback":true,"unk_token":null,"merges":[],"vocab":{` + strings.Join(vocab, ",") + `}},
		"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]},"added_tokens":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"abc", "日本é😀", "a\xffb", "\xe6\x97", "\xf0\x9f\x98x", "\xed\xa0\x80z", "\xe6\x97\xa5\xe6", "\uFFFD",
	} {
		plain, scored := writer{stream: tok.NewStream()}, writer{
			stream: tok.NewStream(), scored: true,
		}
		var tokens []Token
		for i := range len(text) {
			plain.push(int32(text[i]), Token{})
			plain.piece(false)
			scored.push(int32(text[i]), Token{ID: int32(text[i])})
			tokens = append(tokens, scored.piece(false).Tokens...)
		}
		for _, w := range []*writer{&plain, &scored} {
			w.end()
			tokens = append(tokens, w.piece(true).Tokens...)
		}
		var joined []byte
		for _, x := range tokens {
			joined = append(joined, x.Bytes...)
		}
		if got := scored.text.String(); got != plain.text.String() || string(joined) != got ||
			len(tokens) != len(text) || !utf8.ValidString(got) {
			t.Errorf("%q: plain %q, scored %q, %d tokens of %q", text, plain.text.String(), got,
				len(tokens), joined)
		}
		if utf8.ValidString(text) && plain.text.String() != text {
			t.Errorf("%q became %q", text, plain.text.String())
		}
	}
}

// Ensure that log probabilities are the model's own, sorted, and include the chosen token for any
// sampling, and that requesting them changes no answer.
func TestLogProbs(t *testing.T) {
	e := opened(t, Options{})
	r := Request{
		Prompt: "Describe the image.", Images: Pictures(drawn(t, 6)), Reduce: half,
		MaxTokens: 20,
	}
	plain, err := e.Ask(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.LogProbs, r.Top = true, 5
	var pieces []Piece
	j, err := e.Submit(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	for p, ok := j.Next(); ok; p, ok = j.Next() {
		pieces = append(pieces, p)
	}
	a, err := j.Answer()
	if err != nil || a.Text != plain.Text || len(a.Scored) != len(a.Tokens) {
		t.Fatalf("%d of %d tokens, %q, want %q, %v", len(a.Scored), len(a.Tokens), a.Text,
			plain.Text, err)
	}
	checkScored(t, a)
	for i, s := range a.Scored {
		if s.ID != a.Tokens[i] || len(s.Top) != 5 || s.Top[0].ID != s.ID ||
			s.Top[0].LogProb != s.LogProb {
			t.Errorf("token %d: %+v", i, s)
		}
		sum := 0.0
		for k, top := range s.Top {
			sum += math.Exp(top.LogProb)
			if k > 0 && top.LogProb > s.Top[k-1].LogProb {
				t.Errorf("token %d: %+v is not sorted", i, s.Top)
			}
		}
		if !(sum <= 1+1e-9) {
			t.Errorf("token %d: probabilities add up to %v", i, sum)
		}
	}
	var streamed []Token
	for _, p := range pieces {
		streamed = append(streamed, p.Tokens...)
	}
	if len(streamed) != len(a.Scored) {
		t.Errorf("%d tokens in pieces, want %d", len(streamed), len(a.Scored))
	}
	hot := r
	hot.Sample.Temp, hot.Sample.TopK, hot.Sample.Seed = 1.5, 3, 4
	b, err := e.Ask(context.Background(), hot)
	if err != nil {
		t.Fatal(err)
	}
	if b.Scored[0].Top[0].LogProb != a.Scored[0].Top[0].LogProb {
		t.Errorf("the temperature changed log probabilities: %v, want %v", b.Scored[0].Top[0],
			a.Scored[0].Top[0])
	}
}

// only allows the tokens of a list, one after another.
type only struct {
	list []int32
	at   int
}

func (o *only) Mask() []uint64 {
	mask := make([]uint64, 64)
	if o.at < len(o.list) {
		mask[o.list[o.at]/64] = 1 << (o.list[o.at] % 64)
	}
	return mask
}

func (o *only) Accept(id int32) error {
	if id != o.list[o.at] {
		return fmt.Errorf("got %d, want %d", id, o.list[o.at])
	}
	o.at++
	return nil
}

func (o *only) Done() bool { return o.at == len(o.list) }

// fading allows every token until its n-th mask. Then the request's context ends, and the mask is
// incomplete: it has no token, or only token 7.
type fading struct {
	n     int
	rest  uint64
	close context.CancelFunc
}

func (f *fading) Mask() []uint64 {
	if f.n--; f.n > 0 {
		return nil
	}
	f.close()
	return []uint64{f.rest}
}

func (f *fading) Accept(int32) error { return nil }
func (f *fading) Done() bool         { return false }

// Ensure that a request that ends while its constraint looks for the next token is cancelled there,
// and not complete, without a token from the incomplete mask, and that later requests can use what
// it has read.
func TestConstraintCancelled(t *testing.T) {
	e := opened(t, Options{})
	ids := make([]int32, kernel.PageKeys-1) // an answer's second token takes another page
	for i := range ids {
		ids[i] = int32(1 + i*31%500)
	}
	r := Request{Tokens: ids, MaxTokens: 8, IgnoreEnd: true, NoCache: true}
	want, err := e.Ask(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.NoCache = false
	for n := 1; n <= 4; n++ {
		for _, rest := range []uint64{0, 1 << 7} {
			ctx, cancel := context.WithCancel(context.Background())
			r.Constraint = &fading{n, rest, cancel}
			a, err := e.Ask(ctx, r)
			if !errors.Is(err, context.Canceled) || a == nil || a.Finish != FinishCancelled ||
				!slices.Equal(a.Tokens, want.Tokens[:n-1]) {
				t.Errorf("at token %d: got %+v, %v, want the first tokens of %v", n, a, err,
					want.Tokens)
			}
			r.Constraint = nil
			next := r
			next.Tokens = slices.Concat(ids, want.Tokens[:n-1], []int32{84, 62, 64, 33})
			a, err = e.Ask(context.Background(), next)
			next.NoCache = true
			b, err2 := e.Ask(context.Background(), next)
			if err != nil || err2 != nil || !slices.Equal(a.Tokens, b.Tokens) {
				t.Errorf("after token %d: got %+v, %v, without caches %+v, %v", n, a, err, b, err2)
			}
		}
	}
}

// Ensure that a constraint applies before the choice, at any temperature, and that the answer ends
// when the constraint is done or allows no token.
func TestConstraint(t *testing.T) {
	e := opened(t, Options{})
	list := []int32{400, 17, 230, 5, 99}
	for _, temp := range []float64{0, 0.8} {
		r := Request{Prompt: "Describe the image.", Constraint: &only{list: list}, LogProbs: true}
		r.Sample.Temp = temp
		a, err := e.Ask(context.Background(), r)
		if err != nil || !slices.Equal(a.Tokens, list) || a.Finish != FinishStop {
			t.Errorf("temperature %v: %+v, %v", temp, a, err)
		}
	}
	a, err := e.Ask(context.Background(), Request{
		Prompt: "?", Constraint: &only{list: list}, MaxTokens: 3,
	})
	if err != nil || len(a.Tokens) != 3 || a.Finish != FinishLength {
		t.Errorf("cut: %+v, %v", a, err)
	}
}

// Ensure that with IgnoreEnd the answer runs to its limit and holds no end token.
func TestIgnoreEnd(t *testing.T) {
	e := opened(t, Options{})
	a, err := e.Ask(context.Background(), Request{
		Prompt: "What number is written?", IgnoreEnd: true, MaxTokens: 60,
	})
	if err != nil || len(a.Tokens) != 60 || a.Finish != FinishLength {
		t.Fatalf("%+v, %v", a, err)
	}
	for _, id := range a.Tokens {
		if e.eos[id] {
			t.Errorf("an end token in %v", a.Tokens)
		}
	}
}

// Ensure that requests with an invalid option return an error that names the option.
func TestRequestRefused(t *testing.T) {
	e := opened(t, Options{})
	for name, r := range map[string]Request{
		"top-logprobs": {Prompt: "?", Top: 3},
		"messages":     {Prompt: "?", Messages: []Message{says("user", "?")}},
		"tokens":       {Prompt: "?", Tokens: []int32{1}},
		"cache-salt":   {Prompt: "?", NoCache: true, Salt: "x"},
		"max-tokens":   {Prompt: "?", MaxTokens: -1},
		"stop":         {Prompt: "?", Stop: []string{"\xf0\x9f"}},
		"n-vis":        {Prompt: "?", Images: Pictures(drawn(t, 1)), Reduce: methods.Options{Base: "holov", NVis: 577}},
	} {
		var option *errs.OptionError
		if _, err := e.Ask(context.Background(), r); !errors.As(err, &option) ||
			option.Name != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	var option *errs.OptionError
	c := e.NewConversation(half)
	if _, err := c.Ask(context.Background(), Request{
		Prompt: "?", Reduce: methods.Options{Base: "nonsense"},
	}); !errors.As(err, &option) {
		t.Errorf("a conversation with another reduction: %v", err)
	}
}

// folder is a Store in memory.
type folder struct {
	mu    sync.Mutex
	files map[Key][]byte
}

func (f *folder) Load(k Key, _ bool) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := f.files[k]
	return d, ok
}

func (f *folder) Save(k Key, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[k] = data
}

// Ensure that a store gives the same answers after a restart without running the encoder, that
// stored data is checked, and that another model or arithmetic finds nothing in it.
func TestStore(t *testing.T) {
	store := &folder{files: map[Key][]byte{}}
	var reqs []Request
	var want []*Answer
	first := tiny(t, Options{Store: store})
	for _, r := range mixed(t, first, 12) {
		r.NoCache = false
		r.Images, r.Tokens = r.Images[:1], r.Tokens[:6]
		a, err := first.Ask(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		reqs, want = append(reqs, r), append(want, a)
	}
	returned(t, first)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again := tiny(t, Options{Store: store})
	for i, r := range reqs {
		a, err := again.Ask(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		p, q := a.Report.Images[0], want[i].Report.Images[0]
		if !slices.Equal(a.Tokens, want[i].Tokens) ||
			p.Cache != FromDisk && p.Cache != FromFeatures || p.Kept != q.Kept ||
			p.Merged != q.Merged || p.Options.String() != q.Options.String() {
			t.Errorf("%d: from %s %v, want %v", i, p.Cache, a.Tokens, want[i].Tokens)
		}
	}
	if s := again.Stats().Features; s.DiskHits == 0 || s.Misses != 0 {
		t.Errorf("%+v", s)
	}
	other := tiny(t, Options{Store: store, Quant: "q8"})
	if a, err := other.Ask(context.Background(), reqs[0]); err != nil ||
		a.Report.Images[0].Cache != FromNothing {
		t.Errorf("another plan: %v, %v", a, err)
	}
	for k, data := range store.files {
		store.files[k] = data[:len(data)-4]
	}
	damaged := tiny(t, Options{Store: store})
	for i, r := range reqs {
		a, err := damaged.Ask(context.Background(), r)
		if err != nil || !slices.Equal(a.Tokens, want[i].Tokens) {
			t.Errorf("%d: with damaged files %v, %v", i, a, err)
		}
	}
}

// late is a store in which another process has just saved what this one gave up waiting for.
type late struct{ *folder }

func (l late) Load(k Key, wait bool) ([]byte, bool) {
	if wait {
		return nil, false
	}
	return l.folder.Load(k, wait)
}

// Ensure that a picture that another process has made while it waited for its turn is not encoded.
func TestStoreLate(t *testing.T) {
	store := &folder{files: map[Key][]byte{}}
	var want *Answer
	for i, s := range []Store{store, late{store}} {
		e := tiny(t, Options{Shared: s})
		r := mixed(t, e, 1)[0]
		r.NoCache, r.Images, r.Tokens = false, r.Images[:1], r.Tokens[:6]
		a, err := e.Ask(context.Background(), r)
		if err == nil && i == 0 {
			err = e.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			want = a
		} else if n := e.Stats().Features; n.Misses != 0 || n.SharedHits != 1 ||
			a.Report.Images[0].Cache != FromShared || !slices.Equal(a.Tokens, want.Tokens) {
			t.Errorf("got %v, %+v, want %v", a.Tokens, n, want.Tokens)
		}
	}
}

// slow is a store whose Save waits.
type slow struct {
	folder
	begun     chan bool
	end       chan bool
	at, above atomic.Int64 // calls of Save that run, and that began while another ran
}

func (s *slow) Save(k Key, data []byte) {
	if s.at.Add(1) > 1 {
		s.above.Add(1)
	}
	defer s.at.Add(-1)
	s.begun <- true
	<-s.end
	s.folder.Save(k, data)
}

// Ensure that a slow store holds up no request: one picture is stored at a time, few wait, and the
// others are counted.
func TestSlowStore(t *testing.T) {
	store := &slow{
		folder: folder{files: map[Key][]byte{}}, begun: make(chan bool, 100), end: make(chan bool),
	}
	e := tiny(t, Options{Store: store})
	end := sync.OnceFunc(func() { close(store.end) })
	t.Cleanup(end)
	ask := func(seed int64) {
		t.Helper()
		r := Request{Tokens: []int32{1, e.m.ImageToken(), 5}, MaxTokens: 1,
			Images: Pictures(drawn(t, seed))}
		if _, err := e.Ask(context.Background(), r); err != nil {
			t.Fatal(err)
		}
	}
	ask(1)
	<-store.begun
	e.saving.mu.Lock()
	each := e.saving.bytes
	e.saving.most = 3 * each
	e.saving.mu.Unlock()
	for seed := range 4 {
		ask(int64(10 + seed))
	}
	// One is being stored and two wait.
	if s := e.Stats(); s.Unsaved != 2 || each == 0 {
		t.Errorf("%d pictures of %d bytes were not stored, want 2", s.Unsaved, each)
	}
	end()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if n := store.above.Load(); len(store.files) != 3 || n != 0 {
		t.Errorf("%d were stored, %d at the same time as others, want 3 and 0", len(store.files), n)
	}
}

// FuzzUnpack checks that no data from a store yields a picture that cannot be read.
func FuzzUnpack(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00{}"))
	f.Add([]byte("\x40\x00\x00\x00" + `{"Rows":1,"Width":2,"Reduced":true,"NVis":1,"Tokens":[{"Size":1}]}  ` + "\x00\x00\x00\x00\x00\x00\x00\x00"))
	e, p := &Engine{shape: model.DecoderShape{Hidden: 2}}, &picture{
		image: &image{shape: &model.Shape{N: 4}},
	}
	plan, err := methods.Resolve(methods.Options{Base: "random", NVis: 1}, methods.Facts{
		Tokens: 4, GridH: 2, GridW: 2,
	})
	if err != nil {
		f.Fatal(err)
	}
	p.plan = plan
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := e.unpack(p, data)
		if err == nil && (len(got.x) != 2 || len(got.reduction.Rows) != 1) {
			t.Errorf("%q: %+v", data, got)
		}
	})
}

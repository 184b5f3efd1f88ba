package restore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// embedded opens the embedded model.
func embedded(t *testing.T) *restore.Model {
	t.Helper()
	m, err := restore.Open(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// Ensure that a request that is cut short returns the answer so far and the cause, in the same
// way whether it has a picture, streams, or is part of a conversation.
func TestCancelled(t *testing.T) {
	m := embedded(t)
	stop := errors.New("enough")
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, pics := range map[string][]*restore.Picture{
		"picture": {square()}, "text alone": nil,
	} {
		for form, do := range map[string]func(context.Context, restore.Request) (*restore.Answer,
			error){
			"ask":          m.Ask,
			"conversation": c.Ask,
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(stop)
			ans, err := do(ctx, restore.Request{Prompt: "Describe the image.", Pictures: pics})
			if !errors.Is(err, stop) {
				t.Errorf("%s, %s: got error %v, want the cause", form, name, err)
			}
			if ans == nil || ans.Finish != restore.FinishCancelled {
				t.Errorf("%s, %s: got answer %+v, want one that was cancelled", form, name, ans)
			}
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var text strings.Builder
	for piece, err := range m.Stream(ctx, restore.Request{
		Prompt: "Describe the image.", Pictures: []*restore.Picture{square()},
	}) {
		text.WriteString(piece.Text)
		cancel(stop)
		if err == nil {
			continue
		}
		if !errors.Is(err, stop) || piece.Answer == nil || piece.Answer.Text != text.String() {
			t.Errorf("stream: got error %v and answer %+v after %q, want the cause and the "+
				"text so far", err, piece.Answer, text.String())
		}
	}
	if text.Len() == 0 {
		t.Error("stream: got no text before it was cancelled")
	}
}

// watched is a context that lives long. It counts the functions and contexts that wait for its end.
type watched struct {
	context.Context
	waiting atomic.Int64
}

func (*watched) Done() <-chan struct{} { return make(chan struct{}) }
func (*watched) Value(any) any         { return nil }

// AfterFunc is called by package context.
func (w *watched) AfterFunc(func()) (stop func() bool) {
	w.waiting.Add(1)
	return sync.OnceValue(func() bool { w.waiting.Add(-1); return true })
}

// Ensure that a request leaves nothing that waits for the end of its context, which may live as
// long as the program.
func TestLongContext(t *testing.T) {
	m := embedded(t)
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := &watched{Context: context.Background()}
	r := restore.Request{
		Prompt: "What is there?", Pictures: []*restore.Picture{square()}, MaxTokens: 1,
	}
	for name, do := range map[string]func() error{
		"ask":          func() error { _, err := m.Ask(ctx, r); return err },
		"conversation": func() error { _, err := c.Ask(ctx, r); return err },
		"stream": func() error {
			for _, err := range m.Stream(ctx, r) {
				return err
			}
			return nil
		},
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := ctx.waiting.Load(); n != 0 {
			t.Errorf("%s: %d functions still wait for the context's end", name, n)
		}
	}
}

// Ensure that a panic in a stream reaches its loop, whether it is the loop's or the program's
// method's, and that the model goes on.
func TestStreamPanics(t *testing.T) {
	m := embedded(t)
	broken := false
	err := restore.RegisterMethod(reduce.Method{Name: "broken"}, func() reduce.Criterion {
		if broken {
			panic("method")
		}
		return reduce.KeepFunc(nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	r := restore.Request{Prompt: "Describe the image.", Pictures: []*restore.Picture{square()}}
	panics := func(r restore.Request) (value any) {
		defer func() { value = recover() }()
		for range m.Stream(t.Context(), r) {
			panic("loop")
		}
		return nil
	}
	if v := panics(r); v != "loop" {
		t.Errorf("got panic %v, want the loop's", v)
	}
	broken = true
	defer func() { broken = false }()
	r.Reduction = &restore.Reduction{Base: "broken", NVis: 64}
	if v := panics(r); v != "method" {
		t.Errorf("got panic %v, want the method's", v)
	}
	r.Reduction = nil
	if _, err := m.Ask(t.Context(), r); err != nil {
		t.Error(err)
	}
}

// Ensure that a loop over a stream may be left at any piece.
func TestStreamLeft(t *testing.T) {
	m := embedded(t)
	for range m.Stream(t.Context(), restore.Request{
		Prompt: "Describe the image.", Pictures: []*restore.Picture{square()},
	}) {
		break
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

// Ensure that a conversation refuses a reduction that differs from its own.
func TestConversationReduction(t *testing.T) {
	c, err := restore.NewConversation(embedded(t), &restore.Reduction{Base: "holov", NVis: 64})
	if err != nil {
		t.Fatal(err)
	}
	var refused *errs.OptionError
	_, err = c.Ask(t.Context(), restore.Request{
		Prompt: "?", Reduction: &restore.Reduction{Base: "nonsense", NVis: 64},
	})
	if !errors.As(err, &refused) || refused.Name != "reduction" {
		t.Errorf("got %v, want an error about the reduction", err)
	}
	if _, err := c.Ask(t.Context(), restore.Request{
		Prompt: "?", Reduction: &restore.Reduction{Base: "holov", NVis: 64},
	}); err != nil {
		t.Errorf("the same reduction: %v", err)
	}
}

// Ensure that a reduction that no picture could make right is refused at once: by a conversation,
// and by a model whose pictures have any number of tokens.
func TestHopelessReduction(t *testing.T) {
	hopeless := &restore.Reduction{Base: "holov"}
	any, err := restore.DescribeShape("qwen2.5-vl-7b", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer any.Close()
	got := map[string]error{
		"Check": hopeless.Check(), "CheckReduction": any.CheckReduction(hopeless),
	}
	_, got["NewConversation"] = restore.NewConversation(embedded(t), hopeless)
	for name, err := range got {
		var bad *errs.OptionError
		if !errors.As(err, &bad) || bad.Name != "n-vis" || bad.Fault != errs.Missing {
			t.Errorf("%s: got %v, want a missing budget", name, err)
		}
	}
	if err := any.CheckReduction(&restore.Reduction{Base: "holov", NVis: 1 << 20}); err != nil {
		t.Errorf("a budget that some picture may have: %v", err)
	}
}

// Ensure that a picture that was read ahead is not read again, that the answers stay the same, and
// that nothing is read where the question chooses the tokens.
func TestReadAhead(t *testing.T) {
	for base, useful := range map[string]bool{"holov": true, "none": true, "fastv": false} {
		var texts [2]string
		for i, ahead := range []bool{false, true} {
			m, err := restore.Open(t.Context(), "", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			how := &restore.Reduction{Base: base}
			if base != "none" {
				how.NVis = 128
			}
			c, err := restore.NewConversation(m, how)
			if err != nil {
				t.Fatal(err)
			}
			for turn, prompt := range []string{"What is there?", "And here?"} {
				r := restore.Request{Pictures: []*restore.Picture{square()}, MaxTokens: 8}
				if ahead {
					if err := c.ReadAhead(t.Context(), r); err != nil {
						t.Fatalf("%s: %v", base, err)
					}
				}
				r.Prompt = prompt
				a, err := c.Ask(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				texts[i] += a.Text
				rest := a.Usage.Prompt - a.Usage.Cached
				if read := rest < 64; turn == 0 && read != (ahead && useful) {
					t.Errorf("%s, read ahead %t: %d of %d rows read with the question", base,
						ahead, rest, a.Usage.Prompt)
				}
			}
		}
		if texts[0] != texts[1] {
			t.Errorf("%s: answers %q, read ahead %q", base, texts[0], texts[1])
		}
	}
}

// Ensure that each way of giving a picture refuses bad data with a type to branch on.
func TestPictures(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.png")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	large, err := os.ReadFile("docs/scene.png")
	if err != nil {
		t.Fatal(err)
	}
	fault := func(_ *restore.Picture, err error) (errs.PictureFault, string) {
		t.Helper()
		var p *errs.PictureError
		if !errors.As(err, &p) {
			t.Fatalf("got %v, want a PictureError", err)
		}
		return p.Fault, err.Error()
	}
	for name, c := range map[string]struct {
		want errs.PictureFault
		p    *restore.Picture
		err  error
	}{
		"text":   {want: errs.UnknownFormat, err: second(restore.NewPicture([]byte("no picture"), nil))},
		"empty":  {want: errs.EmptyPicture, err: second(restore.OpenPicture(empty, nil))},
		"cut":    {want: errs.Undecodable, err: decoded(large[:200])},
		"pixels": {want: errs.TooManyPixels, err: second(restore.NewPicture(large, &restore.PictureOptions{MaxPixels: 1000}))},
		"bytes":  {want: errs.TooManyBytes, err: second(restore.NewPicture(large, &restore.PictureOptions{MaxBytes: 1000}))},
		"image":  {want: errs.EmptyPicture, err: second(restore.FromImage(image.NewRGBA(image.Rectangle{})))},
	} {
		if got, text := fault(c.p, c.err); got != c.want || strings.Contains(text, "--") {
			t.Errorf("%s: got fault %d (%s), want %d and no flag", name, got, text, c.want)
		}
	}
	if _, err := restore.OpenPicture(filepath.Join(dir, "none.png"), nil); !errors.Is(err,
		errs.ErrNotFound) {
		t.Errorf("no file: got %v, want ErrNotFound", err)
	}
	unlimited := &restore.PictureOptions{MaxBytes: math.MaxInt64, MaxPixels: math.MaxInt64}
	if _, err := restore.OpenPicture("docs/scene.png", unlimited); err != nil {
		t.Errorf("without limits: %v", err)
	}
}

func second(_ *restore.Picture, err error) error { return err }

// decoded returns the error of decoding a file.
func decoded(file []byte) error {
	p, err := restore.NewPicture(file, nil)
	if err == nil {
		_, err = p.Decode()
	}
	return err
}

// Ensure that a model that cannot be opened is an error of its own type.
func TestOpenErrors(t *testing.T) {
	var model *errs.ModelError
	if _, err := restore.Open(t.Context(), t.TempDir(), nil); !errors.As(err, &model) {
		t.Errorf("an empty folder: got %v, want a ModelError", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	cancel(stop)
	if _, err := restore.Open(ctx, "", nil); !errors.Is(err, stop) {
		t.Errorf("cancelled: got %v, want the cause", err)
	}
}

// Ensure that the error for files that make no model says of which kind the fault is.
func TestModelErrors(t *testing.T) {
	changed := func(name string, change func(file []byte) []byte) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("internal/builtin/checkpoint")); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if data = change(data); data == nil {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	packed := func(change func(file []byte) []byte) string {
		var file bytes.Buffer
		if err := restore.Pack(t.Context(), "", &file, nil); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "model.rst")
		if err := os.WriteFile(path, change(file.Bytes()), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := func([]byte) []byte { return nil }
	other := func(name, text string) string {
		dir := changed("model.safetensors", none)
		if err := os.Rename(file(name, text), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	half := func(file []byte) []byte { return file[:len(file)/2] }
	const weights = "model.safetensors"
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"nothing":          {filepath.Join(t.TempDir(), "none"), errs.ErrNotFound},
		"empty folder":     {t.TempDir(), errs.ErrNotFound},
		"no config":        {changed("config.json", none), errs.ErrNotFound},
		"no weights":       {changed(weights, none), errs.ErrNotFound},
		"half a config":    {changed("config.json", half), errs.ErrDamaged},
		"half the weights": {changed(weights, half), errs.ErrDamaged},
		"no header": {changed(weights, func([]byte) []byte { return []byte("abc") }),
			errs.ErrDamaged},
		"half a packed file": {packed(half), errs.ErrDamaged},
		"an empty GGUF":      {file("model.gguf", ""), errs.ErrDamaged},
		"the magic of GGUF":  {file("model.gguf", "GGUF"), errs.ErrDamaged},
		"another GGUF":       {file("model.gguf", "GGMLxxxx"), errs.ErrUnsupported},
		"no GGUF":            {file("model.gguf", "a text"), errs.ErrUnsupported},
		"empty PyTorch":      {other("pytorch_model.bin", ""), errs.ErrDamaged},
		"half a PyTorch":     {other("pytorch_model.bin", "PK\x03\x04"), errs.ErrDamaged},
		"half a pickle":      {other("pytorch_model.bin", "\x80\x02\x8a\x0al"), errs.ErrDamaged},
		"a text":             {"restore_test.go", errs.ErrUnsupported},
		"another architecture": {changed("config.json", func(file []byte) []byte {
			file = bytes.ReplaceAll(file, []byte("LlavaForConditionalGeneration"), []byte("New"))
			return bytes.ReplaceAll(file, []byte(`"llava"`), []byte(`"new"`))
		}), errs.ErrUnsupported},
	} {
		m, err := restore.Open(t.Context(), c.path, nil)
		var model *errs.ModelError
		if !errors.As(err, &model) {
			t.Errorf("%s: got %v, want a ModelError", name, err)
		}
		for _, kind := range []error{errs.ErrNotFound, errs.ErrDamaged, errs.ErrUnsupported} {
			if errors.Is(err, kind) != (kind == c.want) {
				t.Errorf("%s: got %v, which is %q: %t", name, err, kind, errors.Is(err, kind))
			}
		}
		if m != nil {
			m.Close()
		}
	}
}

// Ensure that every option that Open refuses is an errs.OptionError that names it.
func TestOptionErrors(t *testing.T) {
	for name, o := range map[string]restore.Options{
		"threads": {Threads: -1}, "threads ": {Threads: 1025}, "quant": {Weights: "q5"},
		"quant ": {Weights: restore.Q12}, "encoder-quant": {Encoder: restore.Q4},
		"cache-type": {KeysValues: restore.Q8}, "parallel": {Parallel: -1},
		"parallel ": {Parallel: 257}, "queue": {Queue: -2}, "ctx-size": {Context: -1},
		"ctx-size ": {Context: 4097}, "memory": {MemoryBytes: -1}, "kv-mb": {KVBytes: -1},
		"cache-mb": {FeatureBytes: -2}, "encoded-bytes": {EncodedBytes: -1},
		"cache-dir-mb": {CacheFolder: t.TempDir(), CacheBytes: -1},
		"cache-dir":    {CacheFolder: "restore_test.go"}, "min-pixels": {MinPixels: 9},
		"mmproj": {Projector: "restore_test.go"}, "cache-dir-mb ": {CacheBytes: 1},
		"defaults": {Defaults: []string{"pad", "padd"}},
	} {
		m, err := restore.Open(t.Context(), "", &o)
		var bad *errs.OptionError
		if !errors.As(err, &bad) || bad.Name != strings.TrimSpace(name) {
			t.Errorf("%s: got %v", name, err)
		}
		var model *errs.ModelError
		if errors.As(err, &model) {
			t.Errorf("%s: got an error about the model's files: %v", name, err)
		}
		if m != nil {
			m.Close()
		}
	}
	wrong := &restore.Options{Defaults: []string{"threads"}}
	_, err := restore.DescribeShape("llava-1.5-7b", nil, wrong)
	for _, err := range []error{err, restore.Pack(t.Context(), "", io.Discard, wrong)} {
		if bad := new(errs.OptionError); !errors.As(err, &bad) || bad.Name != "defaults" {
			t.Errorf("no such default: got %v", err)
		}
	}
	every := []string{"mmproj", "pad", "min-pixels", "max-pixels"}
	m, err := restore.Open(t.Context(), "", &restore.Options{
		Projector: "restore_test.go", MinPixels: 9, MaxPixels: 9, Defaults: every})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := embedded(t).WeightBytes("q5"); !errors.As(err, new(*errs.OptionError)) {
		t.Errorf("WeightBytes: got %v", err)
	}
}

// Ensure that the error for a bad reduction names the option, whether the reduction comes from
// fields or from JSON.
func TestReductionErrors(t *testing.T) {
	m := embedded(t)
	for name, r := range map[string]*restore.Reduction{
		"base":           {Base: "nonsense", NVis: 64},
		"n-vis":          {Base: "holov", NVis: 577},
		"gamma":          {Base: "holov", NVis: 64, Options: map[string]any{"gamma": 2.0}},
		"gama":           {Base: "holov", NVis: 64, Options: map[string]any{"gama": 0.5}},
		"dart-pivots":    {Base: "holov", NVis: 64, Options: map[string]any{"dart-pivots": 8}},
		"keep-ratio":     {Base: "holov", KeepRatio: 1.5},
		"merge-position": {Base: "holov", NVis: 64, Plain: true, Options: map[string]any{"merge-position": "mean"}},
		"defaults":       {Base: "holov", NVis: 64, Defaults: []string{"gamma", "gama"}},
	} {
		_, err := m.Ask(t.Context(), restore.Request{
			Prompt: "?", Pictures: []*restore.Picture{square()}, Reduction: r,
		})
		var refused *errs.OptionError
		if !errors.As(err, &refused) || refused.Name != name {
			t.Errorf("%s: got %v, want an OptionError of that name", name, err)
		}
	}
	r, err := parsed(`{"base": "holov", "n_vis": 64, "gamma": 0.25}`)
	if err != nil {
		t.Fatal(err)
	}
	ans, err := m.Ask(t.Context(), restore.Request{
		Prompt: "?", Pictures: []*restore.Picture{square()}, Reduction: r,
	})
	if err != nil || ans.Pictures[0].Kept != 16 || ans.Pictures[0].Merged != 48 {
		t.Errorf("from JSON: got %+v, %v, want 16 kept and 48 merged", ans, err)
	}
	var refused *errs.OptionError
	if _, err := parsed(`{"base": "holov", "nvis": 64}`); !errors.As(err, &refused) ||
		refused.Name != "nvis" {
		t.Errorf("an unknown field: got %v, want an OptionError", err)
	}
	r, err = parsed(`{"base": "holov", "n_vis": 4294967360}`) // 2³²+64
	if err == nil {
		_, err = m.Ask(t.Context(), restore.Request{
			Prompt: "?", Pictures: []*restore.Picture{square()}, Reduction: r,
		})
	}
	if !errors.As(err, &refused) || refused.Name != "n-vis" {
		t.Errorf("a large number: got %v, want an OptionError", err)
	}
}

// Ensure that Close ends a stream, and that every later call is refused.
func TestClose(t *testing.T) {
	m, err := restore.Open(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	q := restore.Request{Prompt: "Describe the image.", Pictures: []*restore.Picture{square()}}
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range m.Stream(t.Context(), q) {
		if err != nil && !errors.Is(err, errs.ErrClosed) {
			t.Errorf("closed in a stream: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Ask(t.Context(), q); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("a question: %v", err)
	}
	if _, err := c.Ask(t.Context(), q); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("in a conversation: %v", err)
	}
	if _, err := restore.NewConversation(m, nil); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("a conversation: %v", err)
	}
	m.Info()
	for _, o := range []*restore.Options{nil, {Describe: true}} {
		m, err := restore.Open(t.Context(), "internal/builtin/checkpoint", o)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"Checked": m.Checked(t.Context()), "Verify": m.Verify(),
		} {
			if !errors.Is(err, errs.ErrClosed) || errors.Is(err, errs.ErrDamaged) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}

// Ensure that sampling fields without effect are refused by name, and accepted where they have an
// effect.
func TestSamplingWithoutEffect(t *testing.T) {
	m := embedded(t)
	for name, s := range map[string]restore.Sampling{
		"top-k": {TopK: 5}, "top-p": {TopP: 0.5}, "min-p": {MinP: 0.1}, "seed": {Seed: 3},
	} {
		ask := restore.Request{Prompt: "?", Sampling: s, MaxTokens: 1}
		var refused *errs.OptionError
		_, err := m.Ask(t.Context(), ask)
		if !errors.As(err, &refused) || refused.Name != name || refused.Fault != errs.Useless {
			t.Errorf("%s: got %v, want an error about it", name, err)
		}
		ask.Sampling.Temperature = 0.5
		if _, err := m.Ask(t.Context(), ask); err != nil {
			t.Errorf("%s with a temperature: %v", name, err)
		}
	}
}

// parsed reads a reduction from JSON.
func parsed(object string) (*restore.Reduction, error) {
	r := new(restore.Reduction)
	return r, json.Unmarshal([]byte(object), r)
}

// named is a criterion with a parameter of that name.
type named string

func (named) Keep(*reduce.Input, int) ([]int32, error) { return nil, nil }

func (n named) Declare(d *reduce.Declaration) {
	d.Bool(new(bool), reduce.Parameter{Name: string(n)})
}

// Ensure that a reduction in JSON means the same again.
func TestReductionJSON(t *testing.T) {
	for _, r := range []restore.Reduction{
		{}, {Base: "holov", NVis: 64}, {Base: "holov", KeepRatio: 0.5, Plain: true, AtMost: true},
		{AtMost: true}, {Options: map[string]any{"gamma": 0.25, "base": "holov", "n-vis": 9},
			Defaults: []string{"gamma"}},
		{Options: map[string]any{"budget-file": []byte("{}")}, AtMost: true},
	} {
		data, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		var again restore.Reduction
		if err := json.Unmarshal(data, &again); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if twice, err := json.Marshal(again); err != nil || string(twice) != string(data) {
			t.Errorf("got %s, %v, want %s", twice, err, data)
		}
	}
	for _, name := range []string{"at-most", "defaults"} { // fields besides the parameters
		err := restore.RegisterMethod(reduce.Method{Name: "mine"}, func() reduce.Criterion {
			return named(name)
		})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a parameter with the name of a field: got %v", err)
		}
	}
	r, err := parsed(`{"base": "grid", "at_most": false, "defaults": []}`)
	if err != nil || r.AtMost || r.Options["base"] != "grid" {
		t.Errorf("fields without effect: got %+v, %v", r, err)
	}
	var none *restore.Reduction
	if r, err := none.Over(r); err != nil || r.Options["base"] != "grid" {
		t.Errorf("a default of no reduction: got %+v, %v", r, err)
	}
}

// Ensure that parameters which a model may leave without effect stay such when others are added, as
// long as their source says so.
func TestReductionOver(t *testing.T) {
	soft := func(name string, v any) *restore.Reduction {
		return &restore.Reduction{Options: map[string]any{name: v}, Defaults: []string{name}}
	}
	for _, c := range []struct {
		demands *restore.Reduction
		want    []string
	}{
		{&restore.Reduction{Base: "holov", NVis: 9}, []string{"newlines"}},
		{&restore.Reduction{Base: "holov", NVis: 9, Defaults: []string{"newlines"}},
			[]string{"newlines"}},
		{&restore.Reduction{Base: "holov", NVis: 9, Options: map[string]any{"newlines": "keep"}}, nil},
		{soft("newlines", "keep"), []string{"newlines"}},
		{nil, []string{"newlines"}},
	} {
		got, err := c.demands.Over(soft("newlines", "drop"),
			&restore.Reduction{Options: map[string]any{"newlines": "keep", "base": "divprune"}})
		if err != nil || !slices.Equal(got.Defaults, c.want) {
			t.Errorf("%+v: got %+v, %v, want Defaults %v", c.demands, got, err, c.want)
		}
	}
	r, err := (&restore.Reduction{Base: "holov", NVis: 8}).Over(soft("newlines", "keep"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := restore.Open(t.Context(), "", nil) // without newlines
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, defaults := range [][]string{r.Defaults, nil} {
		r.Defaults = defaults
		if err := m.CheckReduction(r); (err == nil) != (defaults != nil) {
			t.Errorf("Defaults %v: got %v", defaults, err)
		}
	}
}

// Ensure that every way to ask reports a full queue with its numbers.
func TestFullQueue(t *testing.T) {
	m, err := restore.Open(t.Context(), "", &restore.Options{Parallel: 1, Queue: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := make(chan struct{})
	running := restore.PictureFrom(func(ctx context.Context) ([]byte, error) {
		close(begun)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}, nil)
	q := restore.Request{Prompt: "What is there?", Pictures: []*restore.Picture{running}}
	go m.Ask(ctx, q)
	<-begun
	q.Pictures = []*restore.Picture{square()}
	got := map[string]error{}
	_, got["Ask"] = m.Ask(ctx, q)
	_, got["Submit"] = m.Submit(ctx, &q)
	_, got["Count"] = m.Count(ctx, &q)
	_, got["Conversation.Ask"] = c.Ask(ctx, q)
	got["Conversation.ReadAhead"] = c.ReadAhead(ctx, q)
	for _, err := range m.Stream(ctx, q) {
		got["Stream"] = err
	}
	for name, err := range got {
		var full *errs.FullError
		if !errors.As(err, &full) || full.RetryAfter < 1 || !errors.Is(err, errs.ErrQueueFull) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

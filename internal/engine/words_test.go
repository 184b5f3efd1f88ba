package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// readers are reductions whose criterion reads the text after the encoder.
var readers = []methods.Options{
	{Base: "cdpruner", NVis: 48, Restore: true}, {Base: "mmtok", NVis: 48},
	{Base: "cdpruner", AutoMean: 32, Restore: true},
}

// rowsOf returns the rows of an answer's first picture.
func rowsOf(t *testing.T, a *Answer, err error) []reduce.Row {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	r := a.Report.Images[0].Reduction
	if r == nil || len(r.Rows) == 0 {
		t.Fatalf("no reduction: %+v", a.Report.Images[0])
	}
	return r.Rows
}

func sameRows(a, b []reduce.Row) bool { return cmp.Equal(a, b) }

// Ensure that two questions about one picture do not share its rows and the same question does,
// however the question is asked, that the picture is encoded once, and that every answer is that of
// a request without caches.
func TestChoiceForText(t *testing.T) {
	ctx := context.Background()
	const first, second = "What number is written?", "How many red objects are there?"
	for _, o := range readers {
		name := fmt.Sprint(o.Base, " auto ", o.AutoMean)
		e := opened(t, Options{})
		pic := drawn(t, 11)
		fresh := func(r Request) *Answer {
			t.Helper()
			r.Reduce, r.MaxTokens, r.NoCache = o, 8, true
			a, err := e.Ask(ctx, r)
			if err != nil {
				t.Fatal(name, err)
			}
			return a
		}
		a, b := fresh(Request{Prompt: first, Images: Pictures(pic)}),
			fresh(Request{Prompt: second, Images: Pictures(pic)})
		rows := map[string][]reduce.Row{first: rowsOf(t, a, nil), second: rowsOf(t, b, nil)}
		text := map[string]string{first: a.Text, second: b.Text}
		if sameRows(rows[first], rows[second]) {
			t.Fatalf("%s: two questions choose the same rows", name)
		}
		encoded, err := e.Encode(ctx, Pictures(pic), o)
		if err != nil {
			t.Fatal(err)
		}
		less, err := e.Encode(ctx, Pictures(pic)) // without what the method reads
		if err != nil {
			t.Fatal(err)
		}
		check := func(how, question, from string, r Request) {
			t.Helper()
			r.Reduce, r.MaxTokens = o, 8
			got, err := e.Ask(ctx, r)
			if !sameRows(rowsOf(t, got, err), rows[question]) || got.Text != text[question] {
				t.Errorf("%s, %s, %s: not the rows of its question; %q, want %q", name, how,
					question, got.Text, text[question])
			}
			i := got.Report.Images[0]
			if i.Cache != from {
				t.Errorf("%s, %s, %s: from %s, want %s", name, how, question, i.Cache, from)
			}
			n, err := e.Count(ctx, r)
			if err != nil || n.PromptTokens != got.Report.PromptTokens {
				t.Errorf("%s, %s: counted %v, %v", name, how, n, err)
			}
		}
		prompt := func(q string) Request { return Request{Prompt: q, Images: Pictures(pic)} }
		said := func(q string) Request {
			return Request{Messages: []Message{user(shows(pic), Part{Text: q})}}
		}
		check("prompt", first, FromNothing, prompt(first))
		check("prompt", second, FromFeatures, prompt(second))
		again := FromPrefix
		if o.AutoMean > 0 { // which rows there are is not known before
			again = FromFeatures
		}
		check("prompt", first, again, prompt(first))
		check("messages", second, again, said(second))
		check("messages", first, again, said(first))
		salted := prompt(first)
		salted.Salt = "other"
		check("salt", first, FromNothing, salted)
		if o.AutoMean > 0 {
			again = FromNothing
		}
		check("encoded", second, again, Request{Prompt: second, Encoded: encoded})
		for _, s := range []*Encoded{encoded, less} {
			r := Request{Prompt: second, Encoded: s, NoCache: true}
			check("encoded, no cache", second, FromNothing, r)
		}
		if s := e.Stats().Features; s.Entries != 2 { // with and without salt
			t.Errorf("%s: %d entries in the feature cache, want the encoder's output", name,
				s.Entries)
		}
	}
}

// Ensure that each question of a conversation chooses for itself: its answers are those of the
// whole dialogue read without caches.
func TestConversationForText(t *testing.T) {
	ctx := context.Background()
	for _, o := range readers[:3] {
		e := opened(t, Options{})
		c := e.NewConversation(o)
		var messages []Message
		var ids []Key
		for i, q := range []string{
			"Describe the image.", "What number is written?", "Where is the star?",
		} {
			r, parts := Request{Prompt: q, MaxTokens: 8}, []Part{{Text: q}}
			if i != 1 { // the third question brings a second picture
				r.Images = Pictures(drawn(t, int64(11+i)))
				parts = []Part{shows(drawn(t, int64(11+i))), {Text: q}}
			}
			s, d, err := c.sequence(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, d.pics[0].id)
			for _, p := range d.pics[1:] {
				if !slices.Equal(p.words, d.pics[0].words) {
					t.Errorf("%s: the pictures of one prompt are chosen for other texts", o.Base)
				}
			}
			s.release()
			got, err := c.Ask(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			messages = append(messages, user(parts...))
			want, err := e.Ask(ctx, Request{
				Messages: messages, Reduce: o, MaxTokens: 8, NoCache: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			if got.Text != want.Text || got.Report.PromptTokens != want.Report.PromptTokens {
				t.Errorf("%s, turn %d: %q, read again %q", o.Base, i, got.Text, want.Text)
			}
			messages = append(messages, says("assistant", got.Text))
		}
		if ids[0] == ids[1] || ids[1] == ids[2] {
			t.Errorf("%s: two questions of a conversation share the picture's rows", o.Base)
		}
	}
}

// Ensure that stores, which other processes read, get nothing that was chosen for a question.
func TestTextIsNotStored(t *testing.T) {
	for _, o := range readers {
		if o.AutoMean > 0 {
			continue
		}
		store, common := &folder{files: map[Key][]byte{}}, &folder{files: map[Key][]byte{}}
		e := opened(t, Options{Store: store, Shared: common})
		for _, q := range []string{"What number is written?", "Where is the star?"} {
			if _, err := e.Ask(context.Background(), Request{
				Prompt: q, Images: Pictures(drawn(t, 11)), Reduce: o, MaxTokens: 1,
			}); err != nil {
				t.Fatal(err)
			}
		}
		returned(t, e)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if n := len(store.files) + len(common.files); n != 0 {
			t.Errorf("%s: %d entries in stores, want none", o.Base, n)
		}
	}
}

// Ensure that the text of a whole prompt has neither pictures' tokens nor the marks around them,
// and a question's text only the question, without sentences about the answer's form.
func TestWords(t *testing.T) {
	e := opened(t, Options{})
	read := func(e *Engine, r Request) []int32 {
		t.Helper()
		s, err := e.sequence(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		defer s.release()
		return s.all[0].words
	}
	encode := func(text string) []int32 {
		t.Helper()
		ids, err := e.questionIDs(text)
		if err != nil || len(ids) == 0 {
			t.Fatal(ids, err)
		}
		return ids
	}
	pic := Pictures(drawn(t, 2))
	form := " Answer the question using a single word or phrase."
	for _, c := range []struct{ prompt, want string }{
		{"What number is written?", "What number is written?"},
		{"What number is written?\n" + form, "What number is written?"}, {form, form}, {"", ""},
	} {
		got := read(e, Request{Prompt: c.prompt, Images: pic, Reduce: readers[1]})
		if c.want == "" && len(got) == 0 {
			continue
		}
		if want := encode(c.want); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", c.prompt, got, want)
		}
	}
	all := read(e, Request{Prompt: "Where?", System: "Be brief.", Images: pic, Reduce: readers[0]})
	if q := encode("Where?"); len(all) <= len(q) || slices.Contains(all, e.m.ImageToken()) {
		t.Errorf("the whole prompt: %v", all)
	}
	q := openedAt(t, "testdata/qwen25vl-tiny", Options{Threads: 1}, Hooks{})
	before, after := q.m.(interface{ Marks() (int32, int32) }).Marks()
	ids := []int32{5, 6, before, q.m.ImageToken(), after, 7, 8}
	for _, o := range readers[:2] {
		o.NVis = 2
		got := read(q, Request{Tokens: ids, Images: pic, Reduce: o})
		if !slices.Equal(got, []int32{5, 6, 7, 8}) {
			t.Errorf("%s: the text of tokens is %v, want 5 6 7 8", o.Base, got)
		}
	}
}

// Ensure that a model whose tokenizer tells which tokens frame a picture is refused without it, and
// that the error names the tokenizer.
func TestWordsWithoutTokenizer(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/internvl-tiny")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	e := openedAt(t, dir, Options{}, Hooks{})
	_, err := e.sequence(context.Background(), Request{
		Tokens: []int32{5, e.m.ImageToken(), 6}, Images: Pictures(drawn(t, 2)),
		Reduce: methods.Options{Base: "cdpruner", NVis: 2},
	})
	if err == nil || !strings.Contains(err.Error(), "no tokenizer.json, which a method needs") {
		t.Errorf("got %v, want an error about tokenizer.json", err)
	}
}

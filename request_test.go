package restore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
)

// Ensure that a field of a request that cannot be honoured is an errs.OptionError that names it.
func TestRequestErrors(t *testing.T) {
	m := embedded(t)
	pic := square()
	part := func(p restore.Part) restore.Request {
		return restore.Request{Messages: []restore.Message{
			{Role: restore.User, Parts: []restore.Part{p}},
		}}
	}
	holov := &restore.Reduction{Base: "holov", NVis: 64}
	for what, c := range map[string]struct {
		r     restore.Request
		name  string
		fault errs.Fault
	}{
		"a picture and a text in a part": {part(restore.Part{Text: "x", Picture: pic}),
			"messages", errs.Conflict},
		"a reduced text": {part(restore.Part{Text: "x", Reduction: holov}),
			"messages", errs.Conflict},
		"an unknown role": {restore.Request{Messages: []restore.Message{
			{Role: "tool", Parts: []restore.Part{{Text: "x"}}},
			{Role: restore.User, Parts: []restore.Part{{Text: "x"}}},
		}}, "messages", errs.Invalid},
		"an assistant's message at the end": {restore.Request{Messages: []restore.Message{
			{Role: restore.User, Parts: []restore.Part{{Text: "x"}}},
			{Role: restore.Assistant, Parts: []restore.Part{{Text: "x"}}},
		}}, "messages", errs.Invalid},
		"no message": {restore.Request{Messages: []restore.Message{}}, "messages", errs.Invalid},
		"a schema for any object": {restore.Request{Prompt: "x", Format: restore.Format{
			Object: true, Schema: []byte(`{"type":"null"}`)}}, "format", errs.Conflict},
		"a schema with an unknown keyword": {restore.Request{Prompt: "x", Format: restore.Format{
			Schema: []byte(`{"minProperties":1}`)}}, "format", errs.Invalid},
		"a schema that is no JSON": {restore.Request{Prompt: "x", Format: restore.Format{
			Schema: []byte(`{`)}}, "format", errs.Invalid},
		"places in a raw prompt": {restore.Request{Prompt: "x", Raw: true, Places: []int{0}},
			"raw", errs.Conflict},
		"a raw prompt of bytes": {restore.Request{Prompt: "a\xffb", Raw: true},
			"prompt", errs.Invalid},
		"a video": {restore.Request{Prompt: "x", Video: &restore.Video{
			Frames: []*restore.Picture{pic}, FPS: 1}}, "video", errs.Conflict},
		"a negative context":  {restore.Request{Context: -1}, "ctx-size", errs.TooSmall},
		"too large a context": {restore.Request{Context: 4097}, "ctx-size", errs.TooLarge},
		"negative tops":       {restore.Request{Logprobs: true, Top: -1}, "top-logprobs", errs.TooSmall},
		"too many tops":       {restore.Request{Logprobs: true, Top: 21}, "top-logprobs", errs.TooLarge},
	} {
		_, err := m.Ask(t.Context(), c.r)
		var bad *errs.OptionError
		if !errors.As(err, &bad) || bad.Name != c.name || bad.Fault != c.fault {
			t.Errorf("%s: got %v, want an error about %s with fault %d", what, err, c.name, c.fault)
		}
	}
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ask(t.Context(), restore.Request{Prompt: "x", MaxTokens: 1}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Ask(t.Context(), restore.Request{Prompt: "x", System: "Be brief."})
	if bad := new(errs.OptionError); !errors.As(err, &bad) || bad.Name != "system-prompt" {
		t.Errorf("a late system prompt: got %v", err)
	}
}

// Ensure that a nil request or service is an errs.OptionError that names it.
func TestMissing(t *testing.T) {
	m := embedded(t)
	var none *restore.Request
	got := map[string]error{"load request": none.Load(t.Context())}
	_, got["submit request"] = m.Submit(t.Context(), nil)
	_, got["count request"] = m.Count(t.Context(), nil)
	_, got["dialogue request"] = none.Dialogue()
	_, got["of no service"] = restore.NewConversation(nil, nil)
	for what, err := range got {
		var bad *errs.OptionError
		if !errors.As(err, &bad) || bad.Fault != errs.Missing ||
			!strings.HasSuffix(what, bad.Name) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// Ensure that places of pictures that are no ascending offsets in the prompt are refused, also for
// a service that is not in this process.
func TestDialoguePlaces(t *testing.T) {
	pic := square()
	for _, places := range [][]int{{-1, 2}, {2, 1}, {1, 4}, {1}, {1, 2, 3}} {
		r := restore.Request{Prompt: "abc", Pictures: []*restore.Picture{pic, pic}, Places: places}
		var bad *errs.OptionError
		if _, err := r.Dialogue(); !errors.As(err, &bad) || bad.Name != "places" {
			t.Errorf("%v: got %v, want an error about places", places, err)
		}
	}
	r := restore.Request{Prompt: "abc", Pictures: []*restore.Picture{pic, pic}, Places: []int{1, 3}}
	if list, err := r.Dialogue(); err != nil || len(list[0].Parts) != 4 {
		t.Errorf("got %v, %v, want a text, a picture, a text and a picture", list, err)
	}
}

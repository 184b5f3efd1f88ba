package jinja

import (
	"slices"
	"strings"
	"testing"
)

// Ensure that texts keep their marks from the values to the output, and that JSON is read and
// written in order.
func TestRender(t *testing.T) {
	tmpl, err := Parse("{% for m in list %}<{{ m.name | upper }}>{% endfor %}{{ n + 1 }}")
	if err != nil {
		t.Fatal(err)
	}
	d := NewDict()
	d.Set(Plain("name"), FromUser("bob"))
	got, err := tmpl.Render(map[string]any{"list": NewList(d), "n": int64(6)}, nil)
	want := []Segment{{"<", false}, {"BOB", true}, {">7", false}}
	if err != nil || !slices.Equal(got.Segments(), want) || got.String() != "<BOB>7" {
		t.Errorf("got %+v, %v, want %+v", got.Segments(), err, want)
	}
	v, err := FromJSON([]byte(`{"b": [1, 2.5, null], "a": "é<"}`))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := ToJSON(v); err != nil || string(out) != `{"b": [1, 2.5, null], "a": "é<"}` {
		t.Errorf("JSON: %s, %v", out, err)
	}
	for _, gone := range []string{"batch", "truncate", "escape"} {
		if tmpl, err = Parse("{{ n | " + gone + " }}"); err != nil {
			t.Fatal(err)
		}
		if _, err := tmpl.Render(map[string]any{"n": int64(1)}, nil); err == nil {
			t.Errorf("filter %s exists", gone)
		}
	}
}

// Ensure that comparing long texts counts as work.
func TestComparisonsCount(t *testing.T) {
	for _, compare := range []string{"a == b", "a != b", "a < b", "a in [b]"} {
		for times, want := range map[string]bool{"3": true, "50": false} {
			tmpl, err := Parse("{% set a = 'x' * 250000 %}{% set a = a ~ a %}{% set a = a ~ a %}" +
				"{% set a = a ~ a %}{% set b = a ~ '' %}" +
				"{% for i in range(" + times + ") %}{{ " + compare + " }}{% endfor %}")
			if err != nil {
				t.Fatal(err)
			}
			_, err = tmpl.Render(nil, nil)
			if want && err != nil ||
				!want && (err == nil || !strings.Contains(err.Error(), "steps")) {
				t.Errorf("%s, %s times: got %v", compare, times, err)
			}
		}
	}
}

package methods

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// Ensure that text and JSON give a parameter the same value, and what neither takes.
func TestGiven(t *testing.T) {
	for _, c := range []struct {
		name, text, json string
		want             any
	}{
		{"n-vis", "064", `64`, int64(64)},
		{"n-vis", "auto:064", `"auto:64"`, "auto:64"},
		{"guard", "true", `true`, true},
		{"keep-ratio", "0.25", `0.25`, 0.25},
		{"gamma", "1", `1`, 1.0},
		{"base", "holov", `"holov"`, "holov"},
		{"restore", "false", `false`, false},
		{"decode-distance", "true", `true`, true},
		{"tome-r", "4,4", `"4,4"`, "4,4"},
		{"dart-pivots", "3", `3`, int64(3)},
		{"seed", "-7", `-7`, int64(-7)},
	} {
		text := Given{}
		if err := text.Set(c.name, c.text); err != nil || text[c.name] != c.want {
			t.Errorf("%s %s: got %v, %v, want %v", c.name, c.text, text[c.name], err, c.want)
		}
		p := reduce.Parameter{Name: c.name}
		got, err := ParseJSON(fmt.Appendf(nil, "{%q:%s}", p.JSONName(), c.json))
		if err != nil || !reflect.DeepEqual(got, text) {
			t.Errorf("%s %s: got %v, %v, want %v", c.name, c.json, got, err, text)
		}
		back, err := json.Marshal(got)
		if again, err2 := ParseJSON(back); err != nil || err2 != nil ||
			!reflect.DeepEqual(again, got) {
			t.Errorf("%s: %s reads as %v, %v, %v", c.name, back, again, err, err2)
		}
	}
}

// Ensure that what JSON gets wrong is refused under the field's name.
func TestParseJSONRefuses(t *testing.T) {
	for object, want := range map[string]string{
		`{"nvis":64}`:                       "nvis: got no such field, want one of base, before, n_vis, keep_ratio",
		`{"n_vsi":64}`:                      "the nearest is n_vis",
		`{"n_vis":"64"}`:                    `n_vis: got "64", want a whole number`,
		`{"n_vis":"auto:0"}`:                `n_vis: got "auto:0", want a whole number of at least 1 after`,
		`{"n_vis":"auto:"}`:                 `n_vis: got "auto:", want a whole number`,
		`{"budget_file":"x"}`:               "budget_file: ",
		`{"n_vis":6.5}`:                     "n_vis: got 6.5, want a whole number",
		`{"n_vis":1e99}`:                    "n_vis: got 1e99, want a whole number",
		`{"n_vis":null}`:                    "n_vis: got null, want a whole number",
		`{"n_vis":-1}`:                      "n_vis: got -1, want at least 1",
		`{"n_vis":1,"n_vis":2}`:             "n_vis: got 2, want one value (given twice)",
		`{"gamma":"0.5"}`:                   `gamma: got "0.5", want a number`,
		`{"gamma":1.5}`:                     "gamma: got 1.5, want 0 to 1",
		`{"restore":"true"}`:                `restore: got "true", want true or false`,
		`{"base":7}`:                        "base: got 7, want one of none, holov",
		`{"anchors":"best"}`:                `anchors: got "best", want one of`,
		`{"compat":["paper"]}`:              `compat: got ["paper"], want one of`,
		`{"fitprune_recipe":"/etc/x"}`:      "fitprune_recipe: got no such field",
		`{"pdrop_layers":[8,16]}`:           "pdrop_layers: got [8,16], want ascending layers",
		`[]`:                                "want an object of parameters",
		`{"base":"holov"} {}`:               "text after the object",
		`{"base":`:                          "EOF",
		strings.Repeat(" ", maxJSON) + "{}": "want at most 65536",
	} {
		_, err := ParseJSON([]byte(object))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %v, want %q", object, err, want)
		}
	}
}

// Ensure that sources give way as Merge says, and that what cannot is refused of the sources
// together.
func TestMerge(t *testing.T) {
	defaults := Given{"base": "holov", "n-vis": int64(64)}
	for name, c := range map[string]struct {
		sources []Given
		want    Given
	}{
		"a budget replaces a budget": {
			[]Given{{"keep-ratio": 0.5}, {"n-vis": int64(9)}},
			Given{"base": "holov", "keep-ratio": 0.5},
		},
		"a method's budget too": {
			[]Given{{"base": "tome", "tome-r": "8"}}, Given{"base": "tome", "tome-r": "8"},
		},
		"none leaves nothing": {
			[]Given{{"base": "none"}, {"gamma": 0.3, "n-vis": int64(9)}}, Given{"base": "none"},
		},
		"field by field": {
			[]Given{{"gamma": 0.3}, {"gamma": 0.7, "positions": "sequential"}},
			Given{"base": "holov", "n-vis": int64(64), "gamma": 0.3, "positions": "sequential"},
		},
		"another method's parameter below": {
			[]Given{{"base": "dart"}, {"holov-patches": int64(4)}},
			Given{"base": "dart", "n-vis": int64(64)},
		},
		"useless below": {
			[]Given{{"restore": false}, {"gamma": 0.3, "compat": "released"}},
			Given{"base": "holov", "n-vis": int64(64), "restore": false, "compat": "released"},
		},
		"each has an effect with a default below": {
			[]Given{{}, {"anchor-pool": "all"}, {"anchors": "released"}},
			Given{"base": "holov", "n-vis": int64(64), "anchor-pool": "all",
				"anchors": "released"},
		},
		"a budget of another method below": {
			[]Given{{"base": "dart"}, {"tome-r": "8"}}, Given{"base": "dart", "n-vis": int64(64)},
		},
		"what makes useless what is above": {
			[]Given{{"gamma": 0.3}, {"base": "none"}},
			Given{"base": "holov", "n-vis": int64(64), "gamma": 0.3},
		},
	} {
		got := Merge(c.sources[0], append(c.sources[1:], defaults)...)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	for want, sources := range map[string][]Given{
		"n-vis: got 9, want one budget":                 {{"n-vis": int64(9), "keep-ratio": 0.5}},
		"n-vis: got 8, want one budget":                 {{}, {"n-vis": int64(8), "keep-ratio": 0.5}},
		"gamma: got 0.3, which has no effect":           {{"restore": false, "gamma": 0.3}},
		"holov-patches: got 4, which has no effect":     {{"base": "dart", "holov-patches": int64(4)}},
		"restore: got true, which has no effect":        {{"base": "none", "restore": true}},
		"n-vis: got 0, want at least 1":                 {{"n-vis": int64(0)}},
		"dart-pivots: got 40, want at most 32":          {{"base": "dart", "dart-pivots": int64(40)}},
		"vispruner-ratio: got 0.2, which has no effect": {{"base": "vispruner", "vispruner-ratio": 0.2, "gamma": 0.0}},
	} {
		o, err := Merge(sources[0], append(sources[1:], defaults)...).Options()
		if err == nil {
			err = Check(o)
		}
		var option *errs.OptionError
		if !errors.As(err, &option) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", sources, err, want)
		}
	}
}

// FuzzParseJSON reads objects: none may panic, and what is read is what is written.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"n_vis":64}`, `{"base":"holov","gamma":0.5}`, `{}`, `{"a":{"b":[]}}`, `{"n_vis":1e400}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := ParseJSON(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseJSON(text); err != nil || !reflect.DeepEqual(g, again) {
			t.Fatalf("%s: reads as %v, %v", text, again, err)
		}
		_ = Merge(g, Given{"base": "holov", "n-vis": int64(64)})
	})
}

package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/nn"
)

// Values reads fields of one JSON object of a document. It collects every problem; Err returns
// them together, so that one run shows all.
type Values struct {
	path   string
	fields map[string]json.RawMessage
	errs   *[]string
}

// ParseConfig reads config.json's top object.
func ParseConfig(data []byte) (*Values, error) { return ParseDocument("config.json", data) }

// Parser returns a function that reads config.json with read. Its error lists every problem.
func Parser[C any](read func(v *Values) *C) func(data []byte) (*C, error) {
	return func(data []byte) (*C, error) {
		v, err := ParseConfig(data)
		if err != nil {
			return nil, err
		}
		c := read(v)
		return c, v.Err()
	}
}

// ParseDocument reads the top object of the document called name.
func ParseDocument(name string, data []byte) (*Values, error) {
	v := &Values{path: name, errs: new([]string)}
	if err := json.Unmarshal(data, &v.fields); err != nil {
		return nil, fmt.Errorf("model: %s: not a JSON object: %w", name, err)
	}
	if v.fields == nil {
		return nil, fmt.Errorf("model: %s: got null, want an object", name)
	}
	return v, nil
}

// Err returns every problem met so far as one error, or nil.
func (v *Values) Err() error {
	if len(*v.errs) == 0 {
		return nil
	}
	return fmt.Errorf("model: %s", strings.Join(*v.errs, "; "))
}

// Fail records a problem with key, once.
func (v *Values) Fail(key, format string, args ...any) {
	text := fmt.Sprintf("%s: %q: %s", v.path, key, fmt.Sprintf(format, args...))
	if !slices.Contains(*v.errs, text) {
		*v.errs = append(*v.errs, text)
	}
}

// Has reports whether key is present and not null.
func (v *Values) Has(key string) bool {
	raw, ok := v.fields[key]
	return ok && !bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

// Null reports whether key is present and null. In some configs null has its own meaning (no
// sliding window).
func (v *Values) Null(key string) bool {
	_, ok := v.fields[key]
	return ok && !v.Has(key)
}

// Object returns the object under key. If it is missing, this is a problem if required (a default
// would silently describe another model), and otherwise the object is empty.
func (v *Values) Object(key string, required bool) *Values {
	o := &Values{path: v.path + ": " + key, fields: map[string]json.RawMessage{}, errs: v.errs}
	if !v.Has(key) {
		if required {
			v.Fail(key, "missing, want an object")
		}
		return o
	}
	if err := json.Unmarshal(v.fields[key], &o.fields); err != nil {
		v.Fail(key, "got %s, want an object", clip(v.fields[key]))
	}
	return o
}

// Rotation returns the settings of the rotation and their key: rope_scaling, or, if it is absent or
// empty, rope_parameters of transformers 5. In transformers one replaces the other, too.
func (v *Values) Rotation() (o *Values, key string) {
	for _, key = range []string{"rope_scaling", "rope_parameters"} {
		if o = v.Object(key, false); len(o.fields) > 0 {
			break
		}
	}
	return o, key
}

// Int returns a whole number in [lo, hi]. def < 0 means the key is required.
func (v *Values) Int(key string, def, lo, hi int) int {
	if !v.Has(key) {
		if def < 0 {
			v.Fail(key, "missing, want a whole number")
			return lo
		}
		return def
	}
	var f float64
	if err := json.Unmarshal(v.fields[key], &f); err != nil || f != math.Trunc(f) {
		v.Fail(key, "got %s, want a whole number", clip(v.fields[key]))
		return lo
	}
	if f < float64(lo) || f > float64(hi) {
		v.Fail(key, "got %v, want %d to %d", f, lo, hi)
		return lo
	}
	return int(f)
}

// Float returns a finite number > 0, or def if absent.
func (v *Values) Float(key string, def float64) float64 {
	if !v.Has(key) {
		return def
	}
	var f float64
	if err := json.Unmarshal(v.fields[key], &f); err != nil {
		v.Fail(key, "got %s, want a number", clip(v.fields[key]))
		return def
	}
	if !(f > 0) || math.IsInf(f, 0) {
		v.Fail(key, "got %v, want a number above 0", f)
		return def
	}
	return f
}

// Floats returns a list of n finite numbers > 0, nil if it is another.
func (v *Values) Floats(key string, n int) []float64 {
	var many []float64
	err := json.Unmarshal(v.fields[key], &many)
	if err != nil || len(many) != n || slices.ContainsFunc(many, func(f float64) bool {
		return !(f > 0)
	}) {
		v.Fail(key, "got %s, want a list of %d numbers above 0", clip(v.fields[key]), n)
		return nil
	}
	return many
}

// Bool returns a flag, or def if absent.
func (v *Values) Bool(key string, def bool) bool {
	if !v.Has(key) {
		return def
	}
	b := def
	if err := json.Unmarshal(v.fields[key], &b); err != nil {
		v.Fail(key, "got %s, want true or false", clip(v.fields[key]))
	}
	return b
}

// String returns one of allowed (any string if none are given), or def if absent.
func (v *Values) String(key, def string, allowed ...string) string {
	if !v.Has(key) {
		return def
	}
	var s string
	if err := json.Unmarshal(v.fields[key], &s); err != nil {
		v.Fail(key, "got %s, want a string", clip(v.fields[key]))
		return def
	}
	if len(allowed) == 0 {
		return s
	}
	for _, a := range allowed {
		if s == a {
			return s
		}
	}
	v.Fail(key, "got %q, want %s", s, strings.Join(allowed, " or "))
	return def
}

// Activation returns the name of one of [nn.Activations], or def if absent.
func (v *Values) Activation(key, def string) string {
	return v.String(key, def, slices.Sorted(maps.Keys(nn.Activations))...)
}

// Ints returns a whole number or a list of them, which may be empty, or def if absent.
func (v *Values) Ints(key string, def []int) []int {
	if !v.Has(key) {
		return def
	}
	var one int
	if json.Unmarshal(v.fields[key], &one) == nil {
		return []int{one}
	}
	var many []int
	if err := json.Unmarshal(v.fields[key], &many); err != nil || len(many) > 1<<10 {
		v.Fail(key, "got %s, want a whole number or a list of them", clip(v.fields[key]))
		return def
	}
	return many
}

// IDs returns the ids of a token or of a list of them, nil if absent.
func (v *Values) IDs(key string) []int32 {
	var ids []int32
	for _, n := range v.Ints(key, nil) {
		if int(int32(n)) != n {
			v.Fail(key, "got %d, want a token's id", n)
			return nil
		}
		ids = append(ids, int32(n))
	}
	return ids
}

// Strings returns a list of strings, nil if absent.
func (v *Values) Strings(key string) []string {
	if !v.Has(key) {
		return nil
	}
	var many []string
	if err := json.Unmarshal(v.fields[key], &many); err != nil {
		v.Fail(key, "got %s, want a list of strings", clip(v.fields[key]))
	}
	return many
}

// Pairs returns a list of pairs of whole numbers in [lo, hi], or def if absent.
func (v *Values) Pairs(key string, def [][2]int, lo, hi int) [][2]int {
	if !v.Has(key) {
		return def
	}
	var lists [][]int
	if err := json.Unmarshal(v.fields[key], &lists); err != nil || len(lists) == 0 ||
		len(lists) > 1<<10 {
		v.Fail(key, "got %s, want a list of pairs of whole numbers, at least one",
			clip(v.fields[key]))
		return def
	}
	pairs := make([][2]int, len(lists))
	for i, l := range lists {
		if len(l) != 2 || min(l[0], l[1]) < lo || max(l[0], l[1]) > hi {
			v.Fail(key, "got %v at %d, want two numbers of %d to %d", l, i, lo, hi)
			return def
		}
		pairs[i] = [2]int{l[0], l[1]}
	}
	return pairs
}

// ImageToken reads the id that stands for a picture, at least lo (below 0: no token of the
// vocabulary does), or def if it is absent; def < 0 means that it is required. Of its two keys,
// transformers' newer one has the last word.
func (v *Values) ImageToken(def, lo, vocab int) int32 {
	key := "image_token_index"
	if v.Has("image_token_id") {
		key = "image_token_id"
	}
	id := v.Int(key, def, lo, 1<<30)
	if id >= vocab {
		v.Fail(key, "got %d, want an id below vocab_size %d", id, vocab)
	}
	return int32(id)
}

// EncoderStates reads the encoder states that enter the projector; layers is how many layers the
// encoder has, def the default.
func (v *Values) EncoderStates(layers, def int) (states []int) {
	for _, f := range v.Ints("vision_feature_layer", []int{def}) {
		k := f
		if k < 0 {
			k += layers + 1
		}
		if k < 0 || k > layers {
			v.Fail("vision_feature_layer", "got %d, want -%d to %d (%d layers and the embedding)",
				f, layers+1, layers, layers)
			k = 0
		}
		states = append(states, k)
	}
	if states == nil {
		v.Fail("vision_feature_layer", "got an empty list, want one layer at least")
	}
	return states
}

// Unsupported records a problem for every key of keys that is present with a value other than the
// given one: a setting that would change the result and that this architecture does not implement.
func (v *Values) Unsupported(keys map[string]string) {
	for key, want := range keys {
		if v.Has(key) && strings.TrimSpace(string(v.fields[key])) != want {
			v.Fail(key, "got %s, which is not supported, want %s", clip(v.fields[key]), want)
		}
	}
}

// clip returns the beginning of a value, on one line.
func clip(raw []byte) string {
	raw = bytes.Join(bytes.Fields(raw), []byte(" "))
	if len(raw) > 60 {
		return string(raw[:60]) + "…"
	}
	return string(raw)
}

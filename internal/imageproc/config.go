package imageproc

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// maxConfigBytes limits preprocessor_config.json; real ones have under 1 kB.
const maxConfigBytes = 1 << 20

// maxSide limits every side in a configuration.
const maxSide = 8192

// CLIP's channel statistics, the default of most processors.
var (
	CLIPMean = [3]float64{0.48145466, 0.4578275, 0.40821073}
	CLIPStd  = [3]float64{0.26862954, 0.26130258, 0.27577711}
)

// Kind is a kind of processor.
type Kind struct {
	Classes []string // in transformers, without "Fast" or "Pil"; the first one names the kind
	New     func(r *Settings) Processor
}

// NewCLIP makes a [CLIP].
func NewCLIP(r *Settings) Processor { return r.clip() }

// ParseProcessor builds the processor that preprocessor_config.json describes, one of kinds by its
// image_processor_type (or the older feature_extractor_type). It also accepts a
// processor_config.json with an "image_processor" object. Absent keys have the defaults of
// transformers. An unsupported setting that would change the result is an error that names key and
// value; keys that transformers itself ignores are ignored.
func ParseProcessor(preprocessorConfigJSON []byte, kinds []Kind) (Processor, error) {
	r, err := newSettings("processor config", preprocessorConfigJSON)
	if err != nil {
		return nil, err
	}
	if inner, ok := r.m["image_processor"]; ok {
		r.m = nil
		if err := json.Unmarshal(inner, &r.m); err != nil {
			return nil, fmt.Errorf(
				"imageproc: processor config: image_processor: not a JSON object: %w", err)
		}
	}
	name := r.string("image_processor_type")
	if older := r.string("feature_extractor_type"); name == "" {
		name = older
	}
	base := strings.TrimSuffix(strings.TrimSuffix(name, "Fast"), "Pil")
	at := slices.IndexFunc(kinds, func(k Kind) bool { return slices.Contains(k.Classes, base) })
	var known []string
	for _, k := range kinds {
		known = append(known, k.Classes[0])
	}
	switch {
	case at >= 0:
	case name != "":
		return nil, fmt.Errorf("imageproc: processor config: image_processor_type %q is not "+
			"supported, want one of %s", name, strings.Join(known, ", "))
	case r.err != nil:
		return nil, r.err
	default:
		return nil, errors.New("imageproc: processor config: image_processor_type is missing")
	}
	r.class = kinds[at].Classes[0]
	p := kinds[at].New(r)
	r.rejectOthers()
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// VideoKind is a kind of video processor. New completes the picture processor p.
type VideoKind struct {
	Class string // in transformers
	New   func(r *Settings, p Processor) Processor
}

// VideoKindOf returns the one of kinds that video_preprocessor_config.json names, or the first.
func VideoKindOf(videoConfigJSON []byte, kinds []VideoKind) VideoKind {
	var c struct {
		Class string `json:"video_processor_type"`
	}
	_ = json.Unmarshal(videoConfigJSON, &c) // WithVideo returns the error
	at := slices.IndexFunc(kinds, func(k VideoKind) bool { return k.Class == c.Class })
	return kinds[max(at, 0)]
}

// WithVideo returns p completed by the video processor that video_preprocessor_config.json
// describes, which must be of the given kind.
func WithVideo(p Processor, videoConfigJSON []byte, kind VideoKind) (Processor, error) {
	r, err := newSettings("video processor config", videoConfigJSON)
	if err != nil {
		return nil, err
	}
	if name := r.string("video_processor_type"); name != "" && name != kind.Class {
		r.Fail("video_processor_type", "got %q, want %s", name, kind.Class)
	}
	r.class = kind.Class
	p = kind.New(r, p)
	r.rejectOthers()
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// Settings reads typed values from a processor's configuration and keeps the first error.
type Settings struct {
	what  string // that the settings are, for errors
	class string // of the kind
	m     map[string]json.RawMessage
	seen  map[string]bool
	err   error
}

// newSettings reads the settings of what, a JSON object.
func newSettings(what string, data []byte) (*Settings, error) {
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("imageproc: %s: %d bytes, limit %d", what, len(data), maxConfigBytes)
	}
	r := &Settings{what: what, seen: map[string]bool{}}
	if err := json.Unmarshal(data, &r.m); err != nil {
		return nil, fmt.Errorf("imageproc: %s: not a JSON object: %w", what, err)
	}
	return r, nil
}

// Fail records a problem with key.
func (r *Settings) Fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("imageproc: %s: %s: %s", r.what, key, fmt.Sprintf(format, args...))
	}
}

// raw returns the value of key; absent and null are the same, as in most classes of transformers 4
// (but see Bool and filter).
func (r *Settings) raw(key string) (json.RawMessage, bool) {
	r.seen[key] = true
	v, ok := r.m[key]
	return v, ok && string(v) != "null"
}

// Null reports whether key is there and null.
func (r *Settings) Null(key string) bool {
	v, ok := r.m[key]
	return ok && string(v) == "null"
}

func (r *Settings) string(key string) string {
	v, ok := r.raw(key)
	s := ""
	if ok && json.Unmarshal(v, &s) != nil {
		r.Fail(key, "got %s, want a string", short(v))
	}
	return s
}

// Has reports whether key is there and not null.
func (r *Settings) Has(key string) bool {
	_, ok := r.raw(key)
	return ok
}

// Lift makes settings of fields of the object key, if there is one, in place of those that are
// there. names are pairs of a field's and a setting's.
func (r *Settings) Lift(key string, names [][2]string) {
	v, ok := r.raw(key)
	if !ok {
		return
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(v, &fields) != nil {
		r.Fail(key, "got %s, want an object", short(v))
	}
	for _, n := range names {
		if f := fields[n[0]]; f != nil {
			r.m[n[1]] = f
		}
	}
}

// Bool returns a flag, or def if absent. A null is off, also where transformers' class has it on.
func (r *Settings) Bool(key string, def bool) bool {
	v, ok := r.raw(key)
	if !ok {
		return def && v == nil
	}
	if json.Unmarshal(v, &def) != nil {
		r.Fail(key, "got %s, want true or false", short(v))
	}
	return def
}

// Int returns a whole number in [lo, hi], or def if absent.
func (r *Settings) Int(key string, def, lo, hi int) int {
	v, ok := r.raw(key)
	if !ok {
		return def
	}
	if json.Unmarshal(v, &def) != nil || def < lo || def > hi {
		r.Fail(key, "got %s, want an integer from %d to %d", short(v), lo, hi)
		return lo
	}
	return def
}

// Float returns a number, or def if absent.
func (r *Settings) Float(key string, def float64) float64 {
	v, ok := r.raw(key)
	if ok && json.Unmarshal(v, &def) != nil {
		r.Fail(key, "got %s, want a number", short(v))
	}
	return def
}

// triple reads one number per channel, or one for all.
func (r *Settings) triple(key string, def [3]float64) [3]float64 {
	v, ok := r.raw(key)
	if !ok {
		return def
	}
	var one float64
	if json.Unmarshal(v, &one) == nil {
		return [3]float64{one, one, one}
	}
	var many []float64
	if json.Unmarshal(v, &many) != nil || len(many) != 3 {
		r.Fail(key, "got %s, want 3 numbers", short(v))
		return def
	}
	return [3]float64(many)
}

// size is the value of "size" or "crop_size".
type size map[string]int

// size reads an integer, a [height, width] pair or an object of integers. An integer is the side of
// a square, or the shortest edge; of "size", default_to_square decides, which is square if absent.
func (r *Settings) size(key string, square bool, def size) size {
	if key == "size" {
		square = r.Bool("default_to_square", square)
	}
	v, ok := r.raw(key)
	if !ok {
		return def
	}
	var one int
	var pair []int
	var object map[string]*int
	switch {
	case json.Unmarshal(v, &one) == nil:
		if square {
			return size{"height": one, "width": one}
		}
		return size{"shortest_edge": one}
	case json.Unmarshal(v, &pair) == nil && len(pair) == 2:
		return size{"height": pair[0], "width": pair[1]}
	case json.Unmarshal(v, &object) == nil:
		s := size{}
		for k, p := range object {
			if p != nil {
				s[k] = *p
			}
		}
		return s
	}
	r.Fail(key, "got %s, want an integer, [height, width] or an object of integers", short(v))
	return def
}

// is reports whether s has exactly the given keys, and checks their range.
func (r *Settings) is(key string, s size, limit int, names ...string) bool {
	if len(s) != len(names) {
		return false
	}
	for _, n := range names {
		v, ok := s[n]
		if !ok {
			return false
		}
		if v < 1 || v > limit {
			r.Fail(key, "%s: got %d, want 1 to %d", n, v, limit)
		}
	}
	return true
}

// filter returns the resampling filter, or def if absent. A null is another one than def in
// transformers 4, and refused in 5.
func (r *Settings) filter(def Filter) Filter {
	if r.Null("resample") {
		r.Fail("resample", "got null, want an integer from %d to %d", int(Nearest), int(Hamming))
	}
	return Filter(r.Int("resample", int(def), int(Nearest), int(Hamming)))
}

// normalisation reads the rescaling and normalising steps. mean and std are the defaults.
func (r *Settings) normalisation(mean, std [3]float64) normalisation {
	n := normalisation{
		Rescale:   r.Bool("do_rescale", true),
		Factor:    r.Float("rescale_factor", 0.00392156862745098),
		Normalize: r.Bool("do_normalize", true),
		Mean:      r.triple("image_mean", mean),
		Std:       r.triple("image_std", std),
	}
	for c, s := range n.Std {
		if n.Normalize && (float32(s) == 0 || math.IsInf(float64(float32(s)), 0)) {
			r.Fail("image_std", "channel %d: got %g, want a number that is not 0 in float32", c, s)
		}
	}
	r.Bool("do_convert_rgb", true) // pictures are always RGB here
	return n
}

func (r *Settings) clip() *CLIP {
	c := &CLIP{
		doResize: r.Bool("do_resize", true),
		doCrop:   r.Bool("do_center_crop", true),
		filter:   r.filter(Bicubic),
		norm:     r.normalisation(CLIPMean, CLIPStd),
		name:     "CLIPImageProcessor",
	}
	s := r.size("size", false, size{"shortest_edge": 224})
	switch {
	case r.is("size", s, maxSide, "shortest_edge"):
		c.edge = s["shortest_edge"]
	case r.is("size", s, maxSide, "height", "width"):
		c.height, c.width = s["height"], s["width"]
	case c.doResize:
		r.Fail("size", "got %s, want shortest_edge, or height and width", describe(s))
	}
	crop := r.size("crop_size", true, size{"height": 224, "width": 224})
	switch {
	case r.is("crop_size", crop, maxSide, "height", "width"):
		c.cropHeight, c.cropWidth = crop["height"], crop["width"]
	case r.is("crop_size", crop, maxSide, "shortest_edge"):
		c.cropHeight, c.cropWidth = crop["shortest_edge"], crop["shortest_edge"]
	case c.doCrop:
		r.Fail("crop_size", "got %s, want height and width", describe(crop))
	}
	c.lut = newLUT(c.norm)
	return c
}

// NewSigLIP makes a [CLIP] that resizes to a given height and width and crops nothing.
func NewSigLIP(r *Settings) Processor {
	return r.square("SiglipImageProcessor", false, Bicubic)
}

// NewGemma3 makes a [CLIP] that resizes pictures to one size without keeping their ratio, as
// transformers' Gemma3ImageProcessor does. It cuts no crops (do_pan_and_scan).
func NewGemma3(r *Settings) Processor {
	return r.square("Gemma3ImageProcessor", true, Bilinear)
}

// square makes a [CLIP] called name that resizes pictures to one size, by default with filter; see
// size for number.
func (r *Settings) square(name string, number bool, filter Filter) Processor {
	half := [3]float64{0.5, 0.5, 0.5}
	c := &CLIP{
		doResize: r.Bool("do_resize", true), filter: r.filter(filter),
		norm: r.normalisation(half, half), name: name,
	}
	s := r.size("size", number, size{"height": 224, "width": 224})
	if r.is("size", s, maxSide, "height", "width") {
		c.height, c.width = s["height"], s["width"]
	} else {
		r.Fail("size", "got %s, want height and width", describe(s))
	}
	c.lut = newLUT(c.norm)
	return c
}

// NewPadded makes a [CLIP] with padding as a setting; the colour must be the mean's.
func NewPadded(r *Settings) Processor {
	c := r.clip()
	c.Pad = r.Bool("do_pad", false)
	want := c.norm.background()
	got := r.triple("background_color", [3]float64{
		float64(want[0]), float64(want[1]), float64(want[2]),
	})
	for i := range got {
		if c.Pad && got[i] != float64(want[i]) {
			r.Fail("background_color", "got %v, only the mean colour %v is supported", got, want)
		}
	}
	return c
}

// rejectOthers refuses settings that no processor here implements: the settings of transformers'
// image processors that change pixel values, and every other do_… that is on.
func (r *Settings) rejectOthers() {
	refused := []string{
		"pad_size", "size_divisor", "size_divisibility", "crop_pct", "offset", "rescale_offset",
		"input_data_format", "image_aspect_ratio", "disable_grouping_order", "aspect_ratio",
	}
	for _, key := range slices.Sorted(maps.Keys(r.m)) {
		v := r.m[key]
		if r.seen[key] || string(v) == "null" {
			continue
		}
		want := ""
		switch {
		case (strings.HasPrefix(key, "do_") || key == "use_square_size") && string(v) != "false":
			want = "false"
		case slices.Contains(refused, key):
			want = "null"
		case key == "data_format" && !strings.Contains(strings.ToLower(string(v)), "first"):
			want = `"channels_first"`
		}
		if want != "" {
			r.Fail(key, "got %s, which is not supported, want %s", short(v), want)
		}
	}
}

// describe prints a size with its keys sorted.
func describe(s size) string {
	b, err := json.Marshal(s)
	if err != nil {
		return "an invalid size"
	}
	return short(b)
}

// short shortens a JSON value for an error line.
func short(v []byte) string {
	const limit = 60
	s := strings.Join(strings.Fields(string(v)), " ")
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// pinpoints reads a list of [height, width] pairs.
func (r *Settings) pinpoints(key string, v json.RawMessage) [][2]int {
	var lists [][]int
	if json.Unmarshal(v, &lists) != nil || len(lists) > MaxTiles {
		r.Fail(key, "got %s, want at most %d pairs [height, width]", short(v), MaxTiles)
		return nil
	}
	var out [][2]int
	for _, l := range lists {
		if len(l) != 2 {
			r.Fail(key, "got %v, want pairs [height, width]", l)
			return nil
		}
		out = append(out, [2]int(l))
	}
	return out
}

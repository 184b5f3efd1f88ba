package restore

import (
	"sort"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// Details are what `restore show` prints of a model, besides its predictions.
type Details struct {
	Architecture string           // class in config.json
	Params       int64            // number of values in all weights
	Bytes        int64            // their size as stored
	Types        map[string]int64 // number of values by stored type
	Vision, Text []Field          // sizes of the encoder and of the decoder
	EOS          []int32          // end tokens in config.json
	Sizes        any              // what the operations of a pass follow from; nil: not counted
	Name, Format string           // of the files
	Disk         int64            // bytes of all files; of a model in memory, of its weights
	Encoder      *Encoder         // nil if the model has none
	Kept         map[string]int64 // number of values by type in memory
	Resident     int64            // bytes that weights take in memory
	Threads      int
	Kernel       string  // implementation of the arithmetic in use
	Template     string  // where the chat template came from
	Processor    string  // picture processor; "" if the model has none
	Videos       string  // video processor; "" if the model takes no videos
	NoVideos     string  // the setting of videos for which they are refused; "" if there is none
	Tokens       int     // number of tokenizer ids; 0 if the model has none
	End          []int32 // tokens that end an answer
	// settings of generation_config.json that are not used, such as "top_k 20"; nil: none
	Unused []string `json:",omitempty"`
	Packed bool     `json:"-"` // the file is packed: its types cannot be changed
}

// Field is one named size.
type Field struct {
	Name  string
	Value any
}

// Details describes the model.
func (m *Model) Details() *Details {
	i := m.e.Info()
	d := &Details{
		Architecture: i.Architecture, Params: i.Params, Bytes: i.Bytes, Types: i.Types, EOS: i.EOS,
		Name: i.Name, Format: i.Format, Disk: i.Disk, Kept: i.Kept, Resident: i.Resident,
		Threads: i.Threads, Kernel: i.Kernel, Template: i.Template, Processor: i.Processor,
		Videos: i.Videos, NoVideos: i.NoVideos, Tokens: i.Tokens, End: i.End, Packed: m.e.Packed(),
		Unused: i.Unused,
	}
	if i.Sizes != nil {
		d.Sizes = i.Sizes
	}
	if i.Encoder != nil {
		d.Encoder = &Encoder{Type: i.Encoder.Type, Why: i.Encoder.Why}
	}
	for _, f := range i.Vision {
		d.Vision = append(d.Vision, Field(f))
	}
	for _, f := range i.Text {
		d.Text = append(d.Text, Field(f))
	}
	return d
}

// Question is a question about one picture as far as its cost depends on it.
type Question struct {
	Width, Height int // of the picture, in pixels
	Encoded       int // visual tokens that a method before the encoder leaves; 0: all
	NVis          int // visual tokens after the reduction; 0: all that are encoded
	Text          int // other tokens in the prompt
	Generated     int // tokens in the answer
}

// Memory is the memory in bytes that a process needs for a question.
type Memory struct {
	Width, Height int // of the picture, in pixels
	Tokens        int // visual tokens of the picture
	Encoded       int // of them, tokens that a method before the encoder leaves
	Kept          int // after the reduction
	Prompt        int // rows of the decoder
	Generated     int // tokens of the answer
	Weights       int64
	Cache         int64 // keys and values
	Encoder       int64 // buffers and results of the vision tower
	Decoder       int64 // buffers of a forward, and the rows that it reads
	Program       int64 // the process without any weights
	Peak          int64 // the sum: the peak of resident memory
}

// Times are the seconds that a question takes.
type Times struct {
	Encode  float64 // of the picture
	Prefill float64 // of the prompt with the reduced picture
	First   float64 // until the first token: both, plus selecting and merging
	Token   float64 // each token after the first
}

// PredictMemory predicts the peak memory of a process that answers q with the decoder's weights in
// type t; [Default] is the type that the model was opened with. The model must have been opened
// with Options.Describe, so that this process holds no weights.
func (m *Model) PredictMemory(q Question, t WeightType) (*Memory, error) {
	source := m.e.Source()
	if t != Default {
		var err error
		if source, err = m.e.SourceAs(t.engine()); err != nil {
			return nil, err
		}
	}
	f, err := m.e.PredictMemory(source, engine.Question(q))
	if err != nil {
		return nil, err
	}
	out := Memory(*f)
	return &out, nil
}

// PredictTimes predicts how long q takes on this machine with the decoder's weights in type t;
// [Default] is the type that the model was opened with. The machine's speed is measured at the
// first call on it; about, which may be nil, is called before the measurement of one or two
// seconds. Methods inside the encoder or the decoder are not predicted.
func (m *Model) PredictTimes(q Question, t WeightType, about func()) (*Times, error) {
	source := m.e.Source()
	if t != Default {
		var err error
		if source, err = m.e.SourceAs(t.engine()); err != nil {
			return nil, err
		}
	}
	p, err := m.e.PredictTimes(m.e.Speed(about), source, engine.Question(q))
	if err != nil {
		return nil, err
	}
	out := Times(*p)
	return &out, nil
}

// LeastTokens returns the fewest visual tokens to which base, with RESTORE, reduces a picture of
// this model. It is 0 if base does not work with this model, or if the number of a picture's
// tokens depends on the picture. A method that takes a number takes larger ones too, or takes 1.
func (m *Model) LeastTokens(base string) int {
	takes := func(n int) bool {
		_, err := m.e.Resolve(methods.Options{Base: base, NVis: n, Restore: true})
		return err == nil
	}
	all := m.info.VisualTokens
	if base == "none" || all == 0 || takes(1) {
		return min(1, all)
	}
	below := sort.Search(all, func(i int) bool { return takes(i + 1) })
	if below == all {
		return 0
	}
	return below + 1
}

// CheckReduction returns why the model cannot reduce any picture by r; nil if it can, or if that
// depends on the picture.
func (m *Model) CheckReduction(r *Reduction) error {
	o, err := r.checked()
	if err == nil && m.info.VisualTokens > 0 {
		_, err = m.e.Resolve(o)
	}
	return err
}

// WeightBytes returns the bytes that the model's weights take in memory with the decoder's in type
// t; [Default] is AsStored here.
func (m *Model) WeightBytes(t WeightType) (int64, error) {
	source, err := m.e.SourceAs(t.engine())
	if err != nil {
		return 0, err
	}
	n, _ := source.Resident()
	return n, nil
}

// WeightTypes returns the types that Options.Weights, Encoder and KeysValues can name, without
// [AsStored] and [Auto] for Weights.
func WeightTypes() (decoder, encoder, keysValues []WeightType) {
	named := func(names []string) (types []WeightType) {
		for _, name := range names {
			types = append(types, WeightType(name))
		}
		return types
	}
	return named(engine.QuantTypes), named(engine.EncoderQuantTypes), named(engine.CacheTypes)
}

// Verify reads the weights of a model that was opened with Options.Describe and returns any error
// that [Open] without it would return: a value that is NaN or infinite, or a packed file that does
// not match its checksums.
func (m *Model) Verify() error { return m.e.Verify(nil) }

// FreeMemory returns the bytes of free memory, or false if the system does not report it.
func FreeMemory() (int64, bool) { return engine.Available() }

// OnTop returns the description of RESTORE itself, which runs over the methods of [Methods].
func OnTop() reduce.Method { return methods.OnTop() }

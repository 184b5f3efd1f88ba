package checkpoint

import (
	"encoding/json"
	"slices"
)

// Family is what readers and writers of files need to know of a family of models. The package of
// each family has one.
type Family struct {
	Name          string   // model_type in config.json
	Architectures []string // in config.json
	// Tower is the model_type of vision_config by which the family differs from another with the
	// same architecture and model_type; "": it has every other.
	Tower string
	Forms []Form // of the weights' names; the first is the hub's
	// Bias reports whether a quantised module has a bias; nil: none has.
	Bias func(module string) bool
	GGUF *GGUF // nil: llama.cpp does not write it
	// Export is what a folder for transformers needs besides the parts of a Bundle; nil: nothing.
	Export *Export
	// Original is the form in which the models' authors write the family; nil: it is transformers',
	// or a format of its own.
	Original *Original
}

// Original is a form of folders in which configuration and documents are not transformers'.
type Original struct {
	Architecture string // in config.json
	// Translate turns s's documents into transformers' form, and its weights into one of the
	// family's forms. Before, they are as in the files.
	Translate func(s *Store) error
	// Config returns config.json in transformers' form, as far as it tells without a tokenizer.
	Config func(config []byte) ([]byte, error)
}

// Export completes a model that is written for transformers.
type Export struct {
	// Vocabulary are the weights with one row for each token: a model without a token for pictures
	// gets one.
	Vocabulary []string
	// Unread returns weights that the model does not use and that other formats leave out; nil: it
	// uses all.
	Unread func(b Bundle) map[string]*Weight
	// Named are tokens that the processor finds by these names in tokenizer_config.json.
	Named map[string]string
	// Processor returns processor_config.json for a config.json.
	Processor func(config map[string]json.RawMessage) (any, error)
}

// Families are the families that a reader knows.
type Families []*Family

// Of returns the family of the first known architecture in a config.json, nil if there is none.
// Without architectures, which transformers leaves out of models made from a configuration, it is
// the family of the model_type. The original LLaVA, whose type is another's, has no vision_config.
func (fs Families) Of(config []byte) *Family {
	var c struct {
		Architectures []string
		Type          string          `json:"model_type"`
		Vision        json.RawMessage `json:"vision_config"`
	}
	err := json.Unmarshal(config, &c) // its content is checked when a model is made
	var vision struct {
		Type string `json:"model_type"`
	}
	if json.Unmarshal(c.Vision, &vision) != nil {
		vision.Type = ""
	}
	for _, a := range c.Architectures {
		if f := fs.with(vision.Type, func(f *Family) bool {
			return slices.Contains(f.Architectures, a)
		}); f != nil {
			return f
		}
	}
	if err == nil && len(c.Architectures) == 0 && c.Vision != nil {
		return fs.with(vision.Type, func(f *Family) bool { return f.Name == c.Type })
	}
	return nil
}

// Original returns the form of the authors that config.json has, nil if it is another.
func (fs Families) Original(config []byte) *Original {
	var c struct{ Architectures []string }
	if json.Unmarshal(config, &c) != nil { // its content is checked when a model is made
		return nil
	}
	for _, f := range fs {
		if f.Original != nil && slices.Contains(c.Architectures, f.Original.Architecture) {
			return f.Original
		}
	}
	return nil
}

// with returns the first family that fits, if there is one the one with that tower; nil: none fits.
func (fs Families) with(tower string, fits func(f *Family) bool) (found *Family) {
	for _, f := range fs {
		switch {
		case !fits(f) || f.Tower != "" && f.Tower != tower:
		case f.Tower != "":
			return f
		case found == nil:
			found = f
		}
	}
	return found
}

// GGUF is how llama.cpp writes a family: a file of the decoder, and one of encoder and projector.
type GGUF struct {
	Decoders  []string // general.architecture of decoders with these names
	Projector string   // clip.projector_type
	// Is reports whether the projector's file is of this family, and not of another with the same
	// architecture and projector; nil: it is.
	Is     func(projector Metadata) bool
	Prefix string // of the canonical names of the decoder's weights
	// Permuted tells that queries and keys are for the rotation of adjacent rows.
	Permuted bool
	// PermutedTower tells the same of the encoder's queries and keys.
	PermutedTower bool
	Theta         float64 // base of the rotation if the file has none
	// Offset tells that the file adds 1 to the weights of the decoder's and the projector's norms.
	Offset bool
	// Names are pairs of a tensor's name and the canonical one, which come before the pairs of
	// every decoder: whole, or without ".weight" and ".bias". N is a block's number.
	Names [][2]string
	// More returns pairs that depend on the projector's file; nil: none.
	More func(projector Metadata) [][2]string
	// Unread are tensors of the projector's file that no model reads: placeholders of older
	// converters, and copies.
	Unread []string
	// Special are tokens that are special whatever the file says: converters give some of them the
	// type of normal text, in which they would not be found.
	Special        []string
	Picture, Video string // their texts in a prompt
	// Convert completes Config, Processor and Video.
	Convert func(m *Converted) error
	// Joined is how Ollama writes the family; nil: not read.
	Joined *Joined
	// Template is the chat template of files without one; "": there is none.
	Template string
}

// Joined is how Ollama writes a family: decoder, encoder and projector in one file, with keys and
// names of its own.
type Joined struct {
	Architecture string // general.architecture
	// Keys are pairs of a key without the architecture, and llama.cpp's: of the decoder without the
	// architecture, of the encoder whole. Other keys of the encoder begin with "vision." here and
	// with "clip.vision." there.
	Keys [][2]string
	// Names are pairs of the name of an encoder's or projector's tensor, and llama.cpp's, like
	// [GGUF.Names].
	Names [][2]string
	// More returns the values of llama.cpp's keys that the file leaves out or that differ there,
	// and further Names.
	More func(f Metadata) (values map[string]any, names [][2]string, err error)
}

// Metadata are the keys and tensors of a file. Getters return the default if there is no such key.
type Metadata interface {
	Text(key, def string) string
	Flag(key string, def bool) bool
	Flags(key string) []bool // of an array
	Number(key string, def int) int
	Float(key string, def float64) float64
	Required(key string) (int, error) // at least 1
	Numbers(key string) []int         // of an array, or a number alone
	Shape(tensor string) []int        // nil if there is no such tensor
}

// Converted is a model whose documents are made from metadata. Text, Vision and Processor hold the
// sizes that all families have, under Hugging Face's names, and Config the family's names. Without
// Projector, Vision and Processor are nil. Video is nil if pictures and videos have one processor.
type Converted struct {
	Decoder                         Metadata
	Projector                       Metadata // nil if there is no such file
	Text, Vision, Config, Processor map[string]any
	Video                           map[string]any
	Tokens                          map[string]int // ids of the vocabulary; nil if there is none
}

// NoToken is the id that stands for a picture if the vocabulary has no token for it, as in the
// original LLaVA.
const NoToken = -200

// Token returns the id of a token, or NoToken.
func (m *Converted) Token(text string) int {
	if id, ok := m.Tokens[text]; ok {
		return id
	}
	return NoToken
}

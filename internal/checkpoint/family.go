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
	Forms         []Form   // of the weights' names
	// Bias reports whether a quantised module has a bias; nil: none has.
	Bias func(module string) bool
	// Export is what a folder for transformers needs besides the parts of a Bundle; nil: nothing.
	Export *Export
}

// Export completes a model that is written for transformers.
type Export struct {
	// Vocabulary are the weights with one row for each token: a model without a token for pictures
	// gets one.
	Vocabulary []string
	// Unread returns weights that the model does not use and that other formats leave out.
	Unread func(b Bundle) map[string]*Weight
	// Processor returns processor_config.json for a config.json.
	Processor func(config map[string]json.RawMessage) (any, error)
}

// Families are the families that a reader knows.
type Families []*Family

// Of returns the family of the first known architecture in a config.json, nil if there is none.
func (fs Families) Of(config []byte) *Family {
	var c struct{ Architectures []string }
	_ = json.Unmarshal(config, &c) // its content is checked when a model is made
	for _, a := range c.Architectures {
		i := slices.IndexFunc(
			fs, func(f *Family) bool { return slices.Contains(f.Architectures, a) })
		if i >= 0 {
			return fs[i]
		}
	}
	return nil
}

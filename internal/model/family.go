package model

import (
	"embed"
	"encoding/json"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// Family is a family of models. Each package of a model has one; package families lists them.
type Family struct {
	checkpoint.Family
	// New binds a model, and Text the decoder of one whose files hold no encoder.
	New, Text func(*Source) (Multimodal, error)
	// Processors are the picture processors of the published models; families may share them.
	Processors []imageproc.Kind
	// Cell returns the pixels along a patch and the patches along a visual token that config.json
	// says, for picture processors of kind [imageproc.NewLongest]; nil: its settings say it.
	Cell func(config []byte) (patch, merge int, err error)
	// Texts are what the processor writes in and around pictures, by the names under which
	// tokenizer_config.json or processor_config.json may have other texts.
	Texts map[string]string
	// Videos are the video processors, the published models' first; without one the family takes
	// no videos.
	Videos []imageproc.VideoKind
	// Published are models whose speed is measured without their weights, and Shapes their
	// config.json, see Shape.
	Published []string
	Shapes    embed.FS
	// Across is how many of the encoder's squares stand side by side in a measured picture; 0: the
	// encoder takes pictures of any size.
	Across int
	// Longest tells that the picture processor has the length of a picture's longest edge and, with
	// squares, of a square's, not the sides of one square or numbers of pixels.
	Longest bool
	// Budgets are the measured numbers of visual tokens, or shares of all.
	Budgets []string
	// System is the message of the scripts of RESTORE's paper, "" if they do not know the family,
	// and Pad tells that they pad pictures to a square.
	System string
	Pad    bool
}

// Shape returns the config.json of a published model, nil if there is none.
func (f *Family) Shape(name string) []byte {
	config, _ := f.Shapes.ReadFile("shapes/" + name + ".json")
	return config
}

// Settings returns what a [checkpoint.Export] makes of config.json, where that follows from what
// parse reads.
func Settings[C any](
	parse func(config []byte) (*C, error), of func(c *C) map[string]any,
) func(config map[string]json.RawMessage) (any, error) {
	return func(config map[string]json.RawMessage) (any, error) {
		text, err := json.Marshal(config)
		if err != nil {
			return nil, err
		}
		c, err := parse(text)
		if err != nil {
			return nil, err
		}
		return of(c), nil
	}
}

// Package all maps the architecture names of config.json to the constructors of models.
package all

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/model/llavanext"
	"github.com/restore-vlm/restore/internal/model/qwen25vl"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// bind makes a model from a checkpoint.
type bind func(*model.Source) (model.Multimodal, error)

// architectures lists the constructors of every architecture: with its encoder, and without.
var architectures = map[string]struct{ whole, text bind }{
	"LlavaForConditionalGeneration":      {llava.New, textonly.NewLlava},
	"LlavaNextForConditionalGeneration":  {llavanext.New, textonly.NewLlava},
	"Qwen2_5_VLForConditionalGeneration": {qwen25vl.New, textonly.NewQwen},
}

// Open binds ck with the constructor for the architecture in its config.json. A vision_config of
// null means that there is no encoder. An unknown architecture is an error that lists the known
// ones.
func Open(ck *model.Source) (model.Multimodal, error) {
	var c struct {
		Architectures []string        `json:"architectures"`
		Vision        json.RawMessage `json:"vision_config"`
	}
	if err := json.Unmarshal(ck.Config(), &c); err != nil {
		return nil, fmt.Errorf("model: %s: config.json: %w", ck.Name, err)
	}
	for _, a := range c.Architectures {
		if open, ok := architectures[a]; ok {
			if string(c.Vision) == "null" {
				return open.text(ck)
			}
			return open.whole(ck)
		}
	}
	known := make([]string, 0, len(architectures))
	for a := range architectures {
		known = append(known, a)
	}
	sort.Strings(known)
	return nil, fmt.Errorf("model: %s: config.json: architectures: got %q, want one of %s", ck.Name,
		c.Architectures, strings.Join(known, ", "))
}

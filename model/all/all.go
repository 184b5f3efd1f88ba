// Package all is the table of architectures: the name that config.json gives →
// the constructor that binds a checkpoint of it.
package all

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/model/llava"
	"github.com/restore-vlm/restore/model/llavanext"
	"github.com/restore-vlm/restore/model/qwen25vl"
)

var architectures = map[string]func(*model.Source) (model.Multimodal, error){
	"LlavaForConditionalGeneration":      llava.New,
	"LlavaNextForConditionalGeneration":  llavanext.New,
	"Qwen2_5_VLForConditionalGeneration": qwen25vl.New,
}

// Open binds ck with the constructor of the architecture that its config.json
// names. An architecture that is not in the table is an error that lists the
// known ones.
func Open(ck *model.Source) (model.Multimodal, error) {
	var c struct {
		Architectures []string `json:"architectures"`
	}
	if err := json.Unmarshal(ck.Config(), &c); err != nil {
		return nil, fmt.Errorf("model: %s: config.json: %w", ck.Name, err)
	}
	for _, a := range c.Architectures {
		if open, ok := architectures[a]; ok {
			return open(ck)
		}
	}
	known := make([]string, 0, len(architectures))
	for a := range architectures {
		known = append(known, a)
	}
	sort.Strings(known)
	return nil, fmt.Errorf("model: %s: config.json: architectures: got %q, want one of %s", ck.Name, c.Architectures, strings.Join(known, ", "))
}

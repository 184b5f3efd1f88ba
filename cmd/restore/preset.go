package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/cli"
)

// harnessFlags serve clients that can send nothing of ours: what a picture's detail means, and
// further names of the model.
type harnessFlags struct {
	detail  string
	one     []string
	file    string
	presets []*api.Preset
}

func (o *harnessFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.detail, "detail", "none",
		"what a picture's detail means; budget: low is 1/18 of its tokens, high 1/3, original all")
	cli.ShowChoices(fs, "detail", "none", "budget")
	fs.StringArrayVar(&o.one, "preset", nil,
		"a further name of the model with defaults of its own, `NAME={...}`: fields of restore, "+
			"and temperature, top_p, top_k, min_p, max_tokens, seed, system; may be repeated")
	fs.StringVar(&o.file, "presets", "", "`file` with a JSON object of presets")
}

// check reads the presets, those of the file first, in the order of their names.
func (o *harnessFlags) check() error {
	if o.detail != "none" && o.detail != "budget" {
		return cli.NotOneOf("detail", o.detail, []string{"none", "budget"})
	}
	o.presets = nil
	if o.file != "" {
		data, err := cli.ReadText(o.file)
		if err != nil {
			return fmt.Errorf("--presets: %w", err)
		}
		var all map[string]json.RawMessage
		if err := json.Unmarshal([]byte(data), &all); err != nil {
			return cli.Flagf("presets", "%s: %w, want a JSON object of presets", o.file, err)
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			p, err := api.ParsePreset(name, all[name])
			if err != nil {
				return cli.Flagf("presets", "%s: %w", o.file, err)
			}
			o.presets = append(o.presets, p)
		}
	}
	for _, text := range o.one {
		name, object, ok := strings.Cut(text, "=")
		if !ok {
			return cli.Flagf("preset", "got %q, want NAME={...}", text)
		}
		p, err := api.ParsePreset(name, []byte(object))
		if err != nil {
			return cli.Flagf("preset", "%w", err)
		}
		o.presets = append(o.presets, p)
	}
	return nil
}

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
	given   []string // values of --preset
	aliases []string
	presets []*api.Preset
}

func (o *harnessFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.detail, "detail", "none",
		"what a picture's detail means; budget: low is 1/18 of its tokens, high 1/3, original all")
	cli.OneOf(fs, "detail", "none", "budget")
	fs.StringArrayVar(&o.given, "preset", nil,
		"a further name of the model, `NAME` or NAME={...} with defaults of its own: fields of "+
			"restore, and temperature, top_p, top_k, min_p, max_tokens, seed, system; @FILE is a "+
			"file with a JSON object of them; may be repeated")
}

// check reads the presets; presets of a file come in the order of their names.
func (o *harnessFlags) check() error {
	o.aliases, o.presets = nil, nil
	for _, text := range o.given {
		file, isFile := strings.CutPrefix(text, "@")
		name, object, has := strings.Cut(text, "=")
		switch {
		case isFile:
			if err := o.read(file); err != nil {
				return err
			}
			continue
		case !has && strings.Contains(name, "{"): // fields that no name would have
			return cli.Flagf("preset", "got %q, want NAME or NAME={...}", name)
		case !has && strings.TrimSpace(name) != "":
			o.aliases = append(o.aliases, name)
			continue
		}
		p, err := api.ParsePreset(name, []byte(object))
		if err != nil {
			return cli.Flagf("preset", "%w", err)
		}
		o.presets = append(o.presets, p)
	}
	return nil
}

// read adds the presets in a file.
func (o *harnessFlags) read(file string) error {
	data, err := cli.ReadText(file)
	if err != nil {
		return fmt.Errorf("--preset: %w", err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return cli.Flagf("preset", "%s: %w, want a JSON object of presets", file, err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p, err := api.ParsePreset(name, all[name])
		if err != nil {
			return cli.Flagf("preset", "%s: %w", file, err)
		}
		o.presets = append(o.presets, p)
	}
	return nil
}

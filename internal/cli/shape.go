package cli

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
)

// RandomShape is the usage of --shape in commands that compute with it.
const RandomShape = "random weights in the `shape` of a published model or a config.json"

// AddShape adds --shape.
func AddShape(fs *pflag.FlagSet, name *string, usage string) {
	fs.StringVar(name, "shape", "", usage)
	ShowChoices(fs, "shape", append(restore.Shapes(), "FILE")...)
	ShowDefault(fs, "shape", "none")
}

// CheckShape refuses flags that ask for a model's files together with --shape.
func CheckShape(fs *pflag.FlagSet) error {
	shape := fs.Lookup("shape")
	if !shape.Changed {
		return nil
	}
	for _, name := range []string{"model", "mmproj", "pull"} {
		if f := fs.Lookup(name); f != nil && f.Changed {
			return Usagef("--shape and --%s: both given, got %s and %s, want one of them", name,
				shape.Value, f.Value)
		}
	}
	if f := fs.Lookup("quant"); f != nil && f.Value.String() == string(restore.Auto) {
		return Usagef("--quant and --shape: got auto and %s, want a type: auto is for a model's "+
			"files", shape.Value)
	}
	return nil
}

// maxConfig limits the size of a config.json.
const maxConfig = 16 << 20

// ShapeFlag returns the configuration of a value of --shape: nil for the name of a published model,
// else the text of the config.json with that name.
func ShapeFlag(name string) (config []byte, err error) {
	known := restore.Shapes()
	if slices.Contains(known, name) {
		return nil, nil
	}
	info, err := os.Stat(name)
	if err != nil || info.IsDir() {
		return nil, Flagf("shape", "got %q, want %s or a model's config.json%s", name,
			strings.Join(known, "|"), DidYouMean(name, known))
	}
	if config, err = ReadFile(name, maxConfig); err != nil {
		return nil, err
	}
	return asText(name, config)
}

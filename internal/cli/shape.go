package cli

import (
	"os"
	"slices"
	"strings"

	"github.com/restore-vlm/restore"
)

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

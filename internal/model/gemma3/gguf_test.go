package gemma3

import (
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
)

// keys are metadata of a file without an encoder.
type keys struct {
	checkpoint.Metadata
	numbers map[string]int
	sliding []bool
}

func (k *keys) Text(_, def string) string           { return def }
func (k *keys) Float(_ string, def float64) float64 { return def }
func (k *keys) Flags(string) []bool                 { return k.sliding }
func (k *keys) Number(name string, def int) int {
	if x, ok := k.numbers[name]; ok {
		return x
	}
	return def
}

// Ensure that Ollama's files of text alone have the published models' rotation and layers: those of
// 1B have neither a stretched rotation nor a softcapping, whatever they say.
func TestJoinedText(t *testing.T) {
	for _, c := range []struct {
		blocks, context int
		sliding         string // of layers: S has a window
		stretch         any
		cap, every      any
		refused         string
	}{
		{26, 32768, "SSSSSFSS", nil, 0, 6, ""},
		{34, 131072, "SSSSSFSSSSSF", 8, nil, 6, ""},
		{34, 131072, "", 8, nil, nil, ""},
		{18, 32768, "FFF", nil, nil, 1, ""},
		{18, 32768, "SSS", nil, nil, 4, ""},
		{18, 32768, "SFSSF", nil, nil, nil, "sliding_window_pattern"},
	} {
		k := &keys{numbers: map[string]int{
			"gemma3.block_count": c.blocks, "gemma3.context_length": c.context,
		}}
		for _, kind := range c.sliding {
			k.sliding = append(k.sliding, kind == 'S')
		}
		got, _, err := joined(k)
		if (err != nil) != (c.refused != "") || err != nil &&
			!strings.Contains(err.Error(), c.refused) {
			t.Errorf("%+v: got %v", c, err)
		} else if err == nil && (got["gemma3.rope.scaling.factor"] != c.stretch ||
			got["gemma3.final_logit_softcapping"] != c.cap ||
			got["gemma3.attention.sliding_window_pattern"] != c.every) {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

package imageproc

import (
	"errors"
	"testing"

	"github.com/restore-vlm/restore/errs"
)

// Ensure that a processor refuses changes without effect, unless they are defaults.
func TestAdjust(t *testing.T) {
	clip, qwen := goldenProcessor(t, "clip"), goldenProcessor(t, "qwen_b")
	for name, c := range map[string]struct {
		p   Processor
		a   Adjust
		bad string // the option that is refused
	}{
		"nothing":             {clip, Adjust{}, ""},
		"pad":                 {clip, Adjust{Pad: true}, ""},
		"pad whole pictures":  {qwen, Adjust{Pad: true}, "pad"},
		"limits of one size":  {clip, Adjust{MaxPixels: 5000}, "max-pixels"},
		"limits":              {qwen, Adjust{MinPixels: 4000, MaxPixels: 5000}, ""},
		"no processor":        {nil, Adjust{MinPixels: 9}, "min-pixels"},
		"no processor to pad": {nil, Adjust{Pad: true, MaxPixels: 9}, "pad"},
	} {
		var refused *errs.OptionError
		if _, err := c.a.To(c.p); errors.As(err, &refused) != (c.bad != "") ||
			c.bad != "" && (refused.Name != c.bad || refused.Fault != errs.Useless) {
			t.Errorf("%s: got %v, want a refusal of %q", name, err, c.bad)
		}
		c.a.Defaults = []string{c.bad, "max-pixels"}
		if _, err := c.a.To(c.p); err != nil {
			t.Errorf("%s: defaults: %v", name, err)
		}
	}
}

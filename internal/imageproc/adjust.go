package imageproc

import (
	"errors"
	"slices"

	"github.com/restore-vlm/restore/errs"
)

// Adjust changes how a processor prepares pictures. The zero value changes nothing.
type Adjust struct {
	Pad                  bool // as PadSquare
	MinPixels, MaxPixels int  // as LimitPixels; 0: the checkpoint's

	// Defaults are options, as in "pad", that are ignored if the processor has no use for them.
	Defaults []string
}

// To returns p with the changes. p is nil for a model without a processor.
func (a Adjust) To(p Processor) (_ Processor, err error) {
	if _, ok := p.(*CLIP); !ok && slices.Contains(a.Defaults, "pad") {
		a.Pad = false
	}
	var useless *errs.OptionError
	_, low := LimitPixels(p, a.MinPixels, 0)
	if errors.As(low, &useless) && slices.Contains(a.Defaults, "min-pixels") {
		a.MinPixels = 0
	}
	_, high := LimitPixels(p, 0, a.MaxPixels)
	if errors.As(high, &useless) && slices.Contains(a.Defaults, "max-pixels") {
		a.MaxPixels = 0
	}
	if a.Pad {
		if p, err = PadSquare(p); err != nil {
			return nil, err
		}
	}
	return LimitPixels(p, a.MinPixels, a.MaxPixels)
}

// withName is "with" and the name of p, which may be nil.
func withName(p Processor) string {
	if p == nil {
		return "without a picture processor"
	}
	return "with " + p.Name()
}

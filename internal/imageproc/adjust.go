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
	if _, err := LimitPixels(p, a.MinPixels, a.MaxPixels); errors.As(err, &useless) {
		for i, limit := range []*int{&a.MinPixels, &a.MaxPixels} {
			if slices.Contains(a.Defaults, [...]string{"min-pixels", "max-pixels"}[i]) {
				*limit = 0
			}
		}
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

package engine

import (
	"fmt"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/machine"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/families"
)

// QuantAuto is the Quant that keeps the decoder's weights as stored if they fit in the available
// memory, and otherwise uses the largest type that fits.
const QuantAuto = "auto"

// smaller lists the types for a model that does not fit as stored, largest first.
var smaller = []string{"f16", "q8", "q4"}

// available is [machine.Available]; tests replace it.
var available = machine.Available

// fitMemory resolves QuantAuto and returns an error if the weights, also those that h would make,
// do not fit. It reads and makes no weights.
func (o *Options) fitMemory(ck checkpoint.Bundle, h Hooks) error {
	free, known := o.free(0)
	embedded := len(ck.About().Files) == 0 && h.Weights == nil
	small := o.MemoryBytes == 0 && embedded
	if o.Quant != QuantAuto && (!known || small) {
		return nil
	}
	if ck.About().Packed != nil && o.Quant == QuantAuto {
		o.Quant = "" // as packed
	}
	auto := o.Quant == QuantAuto
	if auto {
		o.Quant = ""
		if !known {
			o.Warn("quant auto: as stored, this system does not say how much memory is free")
			return nil
		}
	}
	need, err := residentAs(ck, *o, h)
	if err != nil {
		return nil // binding the model reports the error
	}
	room := free
	if auto {
		room -= free / 8 // reserve for keys, values and buffers
	}
	if need <= room {
		if auto {
			o.Warn(fmt.Sprintf("quant auto: as stored, %s of the %s that are free",
				bytesize.GB(need), bytesize.GB(free)))
		}
		return nil
	}
	stored := o.Quant
	fits, size := "", int64(0)
	for _, quant := range smaller {
		o.Quant = quant
		n, err := residentAs(ck, *o, h)
		if err == nil && n < need && n <= free-free/8 {
			fits, size = quant, n
			break
		}
	}
	o.Quant = stored
	if auto && fits != "" {
		o.Quant = fits
		o.Warn(fmt.Sprintf("quant auto: %s, %s of the %s that are free; as stored it would take %s",
			fits, bytesize.GB(size), bytesize.GB(free), bytesize.GB(need)))
		return nil
	}
	if auto && need <= free {
		return nil
	}
	as := stored
	if as == "" {
		as = "as stored"
	}
	e := &errs.MemoryError{
		What: fmt.Sprintf("engine: %s: weights %s", ck.About().Name, as), Need: need, Have: free,
		Weights: fits,
	}
	if e.Hint = "no type is small enough"; fits != "" {
		e.Hint = fmt.Sprintf("in %s they take %s", fits, bytesize.GB(size))
	}
	return e
}

// free returns the bytes of memory that the weights may take, or, with so many bytes of weights in
// memory, that everything else may take. It returns false if nothing says how many.
func (o *Options) free(weights int64) (int64, bool) {
	free, known := available()
	if o.MemoryBytes == 0 {
		return free, known
	}
	left := max(0, o.MemoryBytes-weights)
	if known {
		left = min(left, free)
	}
	return left, true
}

// keysValues returns the bytes that keys and values may take with so many bytes of weights.
func (o *Options) keysValues(weights int64) (int64, error) {
	free, known := o.free(weights)
	switch {
	case o.MemoryBytes > 0 && o.KVBytes > free:
		return 0, fmt.Errorf("engine: %w", &errs.OptionError{
			Name: "kv-mb", Got: bytesize.GB(o.KVBytes), Want: "at most " + bytesize.GB(free),
			Why: fmt.Sprintf("memory is %s and the weights take %s", bytesize.GB(o.MemoryBytes),
				bytesize.GB(weights)),
			Fault: errs.TooLarge,
		})
	case o.KVBytes > 0:
		return o.KVBytes, nil
	case known:
		return free / 4, nil
	}
	return keysUnknown, nil
}

// residentAs returns the bytes of memory that the weights of ck, and those that h would make, take
// with options o. It reads and makes no weights.
func residentAs(ck checkpoint.Bundle, o Options, h Hooks) (int64, error) {
	src, err := boundAs(ck, o, h)
	if err != nil {
		return 0, err
	}
	n, _ := src.Resident()
	return n, nil
}

// boundAs binds ck with options o, and describes the weights that h would make. It reads and makes
// no weights.
func boundAs(ck checkpoint.Bundle, o Options, h Hooks) (*model.Source, error) {
	o.Progress, h.Describe = nil, true
	if h.Weights != nil {
		h.Weights = NoData
	}
	src := o.source(ck, h)
	if err := src.Plan.Check(); err != nil {
		return nil, err
	}
	_, err := families.Open(src)
	return src, err
}

// Packed reports whether the model is a packed file.
func (e *Engine) Packed() bool { return e.ck.About().Packed != nil }

// Available returns the bytes of free memory, or false if the system does not report it.
func Available() (int64, bool) { return available() }

package reduce_test

import (
	"errors"
	"math"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// Ensure that a whole number may have any integer type of Go.
func TestWholeNumbers(t *testing.T) {
	p := reduce.Parameter{Name: "n", Kind: reduce.Int}
	for _, v := range []any{
		7, int8(7), int16(7), int32(7), int64(7), uint(7), uint8(7), uint16(7), uint32(7), uint64(7),
	} {
		if got, err := p.Parse(v); err != nil || got != int64(7) {
			t.Errorf("%T: got %v, %v", v, got, err)
		}
	}
	for _, v := range []any{uint64(math.MaxInt64 + 1), 7.0, true, nil, []byte("7")} {
		if got, err := p.Parse(v); !errors.As(err, new(*errs.OptionError)) {
			t.Errorf("%T: got %v, %v, want an error", v, got, err)
		}
	}
}

// Ensure that numbers without limits are finite: JSON has no others.
func TestFiniteNumbers(t *testing.T) {
	p := reduce.Parameter{Name: "x", Kind: reduce.Float}
	for _, v := range []any{
		math.Inf(1), math.Inf(-1), float32(math.Inf(1)), math.NaN(), "inf", "-Inf", "nan", "1e999",
	} {
		if got, err := p.Parse(v); !errors.As(err, new(*errs.OptionError)) {
			t.Errorf("%v: got %v, %v, want an error", v, got, err)
		}
	}
	if got, err := p.Parse(math.MaxFloat64); err != nil || got != math.MaxFloat64 {
		t.Errorf("the largest number: got %v, %v", got, err)
	}
}

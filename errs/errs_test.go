package errs_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/restore-vlm/restore/errs"
)

// Ensure that each text names the subject, the value and the accepted values.
func TestTexts(t *testing.T) {
	for want, err := range map[string]error{
		"n-vis: got 577, want at most 576 (the picture's tokens)": &errs.OptionError{
			Name: "n-vis", Got: "577", Want: "at most 576", Why: "the picture's tokens",
			Fault: errs.TooLarge},
		"gamma: got 2, want 0 to 1": &errs.OptionError{Name: "gamma", Got: "2", Want: "0 to 1", Fault: errs.TooLarge},
		"gamma: got 0.5, which has no effect with restore=false": &errs.OptionError{
			Name: "gamma", Got: "0.5", Why: "with restore=false", Fault: errs.Useless},
		"n-vis: missing, want a budget": &errs.OptionError{Name: "n-vis", Want: "a budget", Fault: errs.Missing},
		"keys and values: 12.0 MB, want at most 8.0 MB: ask less": &errs.MemoryError{
			What: "keys and values", Need: 12e6, Have: 8e6, Hint: "ask less"},
		"picture 2: no picture":      &errs.PictureError{Index: 1, Err: errors.New("no picture")},
		"no picture":                 &errs.PictureError{Index: -1, Err: errors.New("no picture")},
		"/m: config.json: not found": &errs.ModelError{Path: "/m", Err: fmt.Errorf("config.json: %w", errs.ErrNotFound)},
		"restore: ask: n-vis: got a, want a number": fmt.Errorf("restore: ask: %w",
			&errs.OptionError{Name: "n-vis", Got: "a", Want: "a number"}),
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Ensure that errors.Is and errors.As find the cause in wrapped errors.
func TestUnwrap(t *testing.T) {
	err := fmt.Errorf("open: %w", &errs.ModelError{
		Path: "/m", Err: fmt.Errorf("config.json: %w", errs.ErrDamaged),
	})
	if !errors.Is(err, errs.ErrDamaged) {
		t.Errorf("%v is not ErrDamaged", err)
	}
	var model *errs.ModelError
	if !errors.As(err, &model) || model.Path != "/m" {
		t.Errorf("%v holds no ModelError of /m", err)
	}
}

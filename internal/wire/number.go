package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxNumber is the longest number that is read, in bytes.
const maxNumber = 1 << 10

// failer records an error about one value.
type failer func(code, format string, args ...any)

// number returns a number as written, "" for any other value; want then describes a valid one.
func number(raw json.RawMessage, kind string) (s, want string) {
	switch {
	case Kind(raw) != "a number":
		return "", kind
	case len(raw) > maxNumber:
		return "", fmt.Sprintf("%s of at most %d bytes", kind, maxNumber)
	}
	return strings.TrimSpace(string(raw)), kind
}

// whole is number for a whole number, without zeros after a point: programs in whose language all
// numbers are fractions write 4096.0.
func whole(raw json.RawMessage) (s, want string) {
	s, want = number(raw, "an integer")
	if n, zeros, ok := strings.Cut(s, "."); ok && strings.Trim(zeros, "0") == "" {
		s = n
	}
	return s, want
}

// integer returns a whole number between least and most; any other value is an error. A number that
// does not fit into int64 counts as the nearest one that does.
func integer(raw json.RawMessage, least, most int64, fail failer) (n int64, ok bool) {
	s, want := whole(raw)
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil && (s == "" || !errors.Is(err, strconv.ErrRange)):
		fail("invalid_type", "got %s, want %s", Describe(raw), want)
	case n < least:
		fail("integer_below_min_value", "got %s, want at least %d", Clip(s), least)
	case n > most:
		fail("integer_above_max_value", "got %s, want at most %d", Clip(s), most)
	default:
		return n, true
	}
	return 0, false
}

// float returns a number between least and most, not least itself if above is set; any other value
// is an error.
func float(raw json.RawMessage, least, most float64, above bool, fail failer) (v float64, ok bool) {
	s, want := number(raw, "a number")
	v, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		fail("invalid_type", "got %s, want %s", Describe(raw), want)
	case v < least:
		fail("decimal_below_min_value", "got %s, want at least %v", Clip(s), least)
	case above && v <= least:
		fail("decimal_below_min_value", "got %s, want more than %v", Clip(s), least)
	case v > most:
		fail("decimal_above_max_value", "got %s, want at most %v", Clip(s), most)
	default:
		return v, true
	}
	return 0, false
}

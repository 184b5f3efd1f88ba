package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/restore-vlm/restore/internal/wire"
)

// CheckOptions say which inputs are good.
type CheckOptions struct {
	URL     string // of all lines
	MaxLine int    // largest line in bytes
	Most    int    // most errors to list
}

// Check reads an input from its begin to its end, counts its lines, and lists the errors for which
// none of them should be answered: lines that cannot be read or have another URL, and the first
// custom_id that occurs twice.
func Check(ctx context.Context, in io.ReadSeeker, o CheckOptions) (
	lines int, bad []LineError, err error,
) {
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return 0, nil, err
	}
	l := newLines(in, o.MaxLine)
	for len(bad) < o.Most {
		if err := context.Cause(ctx); err != nil {
			return 0, nil, err
		}
		text, long, err := l.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, nil, fmt.Errorf("batch: input: line %d: %w", l.at+1, err)
		}
		if e := checkLine(text, long, l.at, &o); e != nil {
			bad = append(bad, *e)
		}
	}
	lines, err = Scan(ctx, in, o.MaxLine)
	var twice *DuplicateError
	if errors.As(err, &twice) {
		bad = append(bad, LineError{twice.Second, "duplicate_custom_id",
			fmt.Sprintf("custom_id: got that of line %d, want one of its own", twice.First)})
		err = nil
	}
	return lines, bad, err
}

// checkLine returns why the line with a number in the file is not good.
func checkLine(text []byte, long bool, number int, o *CheckOptions) *LineError {
	if long {
		return tooLong(number, o.MaxLine)
	}
	q, e := parse(text, number)
	switch {
	case e != nil:
		return e
	case q.URL != o.URL:
		return &LineError{number, "mismatched_endpoint",
			fmt.Sprintf("url: got %s, want the batch's endpoint %s", wire.Quote(q.URL), o.URL)}
	case q.Method != http.MethodPost:
		return &LineError{number, "invalid_method",
			fmt.Sprintf("method: got %s, want POST", wire.Quote(q.Method))}
	}
	return nil
}

// tooLong is the error of a line with more than most bytes.
func tooLong(number, most int) *LineError {
	return &LineError{number, "request_too_large",
		fmt.Sprintf("got more than %d bytes, want at most as many", most)}
}

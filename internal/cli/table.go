package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/restore-vlm/restore/internal/wrap"
)

// Seconds formats a time in seconds, below one second in milliseconds.
func Seconds(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.3g ms", 1000*v)
	}
	return fmt.Sprintf("%.2f s", v)
}

// Count formats a number of things, as in "1 file" or "2 files".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// TokensLine formats counts, as in "576 -> 32 kept + 32 merged" or "576, not reduced". encoded are
// those that a method before the encoder left, before or 0 if there was none.
func TokensLine(before, encoded, kept, merged int) string {
	text := fmt.Sprint(before)
	if encoded > 0 && encoded < before {
		text += fmt.Sprintf(" -> %d encoded", encoded)
		before = encoded
	} else if merged == 0 && kept == before {
		return text + ", not reduced"
	}
	if merged == 0 && kept == before {
		return text
	}
	return text + fmt.Sprintf(" -> %d kept + %d merged", kept, merged)
}

// Milliseconds formats a duration in milliseconds with three significant digits, short ones in
// microseconds.
func Milliseconds(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 10:
		return fmt.Sprintf("%.1f ms", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f ms", v)
	}
	return fmt.Sprintf("%.1f µs", 1000*v)
}

// WriteJSON writes v on one line without HTML escaping.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// leastColumn is the width of the last column of a table from which on it is wrapped.
const leastColumn = 24

// Table writes rows as a table; the first row is the heading. The last column of a table whose rows
// are of one length is wrapped where it would be wider than a help text.
func Table(w io.Writer, rows [][]string) error {
	from := 0 // where the last column begins
	for i := range rows {
		if len(rows[i]) != len(rows[0]) || len(rows[i]) < 2 {
			from = HelpWidth
		}
	}
	for c := 0; len(rows) > 0 && c+1 < len(rows[0]) && from < HelpWidth; c++ {
		width := 0
		for _, r := range rows {
			width = max(width, cells(r[c]))
		}
		from += width + len("  ")
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		last := len(r) - 1
		if room := HelpWidth - from; last >= 0 && room >= leastColumn && cells(r[last]) > room {
			begin := strings.Join(r[:last], "\t")
			for _, line := range wrap.Characters(r[last], room) {
				fmt.Fprintln(t, begin+"\t"+line)
				begin = strings.Repeat("\t", last-1)
			}
			continue
		}
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

package batch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// scanned is how many custom_ids a pass over the input compares, so that memory does not grow with
// the file.
const scanned = 1 << 20

// DuplicateError is returned for an input in which two lines have the same custom_id.
type DuplicateError struct{ First, Second int } // numbers of the lines in the file, from 1

// Error implements error.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("batch: input: lines %d and %d have the same custom_id, want different ones",
		e.First, e.Second)
}

// Scan reads an input from its begin to its end, counts its lines, and refuses two lines with the
// same custom_id. Lines that cannot be read have none.
func Scan(ctx context.Context, in io.ReadSeeker, maxLine int) (lines int, err error) {
	s := &scan{in: in, maxLine: maxLine, room: scanned, passes: 1}
	return s.run(ctx)
}

// scan compares the custom_ids of an input in passes. A pass compares those whose hash has the
// pass's number in its low bits.
type scan struct {
	in      io.ReadSeeker
	maxLine int
	room    int    // most ids in a pass
	pass    uint64 // from 0
	passes  uint64 // a power of 2
	ids     []idAt
}

func (s *scan) run(ctx context.Context) (lines int, err error) {
	for ; s.pass < s.passes; s.pass++ {
		if lines, err = s.once(ctx); err != nil {
			return 0, err
		}
	}
	return lines, nil
}

// once makes one pass.
func (s *scan) once(ctx context.Context) (lines int, err error) {
	if _, err := s.in.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	s.ids = s.ids[:0]
	l := newLines(s.in, s.maxLine)
	for {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		text, long, err := l.next()
		if errors.Is(err, io.EOF) {
			return lines, twice(s.ids)
		}
		if err != nil {
			return 0, fmt.Errorf("batch: input: line %d: %w", l.at+1, err)
		}
		lines++
		if id, ok := customID(text); ok && !long {
			if err := s.add(newIDAt(id, l.at)); err != nil {
				return 0, err
			}
		}
	}
}

// add keeps an id if it is of this pass. Without room, the first pass keeps half of them, and there
// are twice as many passes.
func (s *scan) add(id idAt) error {
	if id.share(s.passes) != s.pass {
		return nil
	}
	s.ids = append(s.ids, id)
	for s.pass == 0 && len(s.ids) > s.room {
		if err := twice(s.ids); err != nil { // equal ids would stay together
			return err
		}
		s.passes *= 2
		s.ids = slices.DeleteFunc(s.ids, func(id idAt) bool { return id.share(s.passes) != 0 })
	}
	return nil
}

// idAt is a custom_id with the number of its line in the file.
type idAt struct {
	high, low uint64 // of the id's SHA-256
	number    int
}

func newIDAt(id string, number int) idAt {
	sum := sha256.Sum256([]byte(id))
	return idAt{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:]), number}
}

// share is the pass that compares the id, if the number of passes is a power of 2.
func (a *idAt) share(passes uint64) uint64 { return a.low & (passes - 1) }

// customID returns the custom_id of a line, as [Run] reads it.
func customID(text []byte) (id string, ok bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil {
		return "", false
	}
	raw, ok := fields["custom_id"]
	return id, ok && string(raw) != "null" && json.Unmarshal(raw, &id) == nil
}

// twice refuses ids that occur twice, the first such line in the file.
func twice(ids []idAt) error {
	slices.SortFunc(ids, func(a, b idAt) int {
		return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low),
			cmp.Compare(a.number, b.number))
	})
	first, second := 0, 0
	for i := 1; i < len(ids); i++ {
		a, b := &ids[i-1], &ids[i]
		if a.high == b.high && a.low == b.low && (second == 0 || b.number < second) {
			first, second = a.number, b.number
		}
	}
	if second == 0 {
		return nil
	}
	return &DuplicateError{first, second}
}

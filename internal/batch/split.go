package batch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/restore-vlm/restore/internal/wire"
)

// Split copies all results, also those that a killed run did not write to the output: answers to
// one writer, all others to the other. It returns how many they are.
func (j *Journal) Split(answers, others io.Writer) (nAnswers, nOthers int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	put := func(line []byte) error {
		to, n := others, &nOthers
		if isAnswer(line) {
			to, n = answers, &nAnswers
		}
		*n++
		_, err := to.Write(line)
		return err
	}
	if err := j.eachWritten(put); err != nil {
		return nAnswers, nOthers, err
	}
	for _, line := range slices.Sorted(maps.Keys(j.earlier)) {
		if err := put(append(slices.Clip(j.earlier[line].text), '\n')); err != nil {
			return nAnswers, nOthers, err
		}
	}
	return nAnswers, nOthers, nil
}

// eachWritten calls f with each result in the output, with its line break.
func (j *Journal) eachWritten(f func(line []byte) error) error {
	if j.mark.Bytes == 0 {
		return nil
	}
	in := bufio.NewReaderSize(io.NewSectionReader(j.out, 0, j.mark.Bytes), 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("batch: %s: %w", j.path, err)
		}
		if err := f(line); err != nil {
			return err
		}
	}
}

// Missing writes a result with an error for each line of the input that has none. It returns how
// many they are.
func (j *Journal) Missing(in io.Reader, maxLine int, why Error, to io.Writer) (n int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := newLines(in, maxLine)
	for line := 0; ; line++ {
		text, long, err := l.next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("batch: input: line %d: %w", l.at+1, err)
		}
		if j.mark.holds(line) || j.earlier[line] != nil {
			continue
		}
		r := Result{ID: newID("batch_req_"), Error: &why}
		if id, ok := customID(text); ok && !long {
			r.CustomID = &id
		}
		data, err := wire.Marshal(r)
		if err == nil {
			_, err = to.Write(append(data, '\n'))
		}
		if err != nil {
			return n, err
		}
		n++
	}
}

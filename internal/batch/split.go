package batch

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/restore-vlm/restore/internal/wire"
)

// Split copies the results in the output: answers to one writer, all others to the other. It
// returns how many they are.
func (j *Journal) Split(answers, others io.Writer) (nAnswers, nOthers int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mark.Bytes == 0 {
		return 0, 0, nil
	}
	in := bufio.NewReaderSize(io.NewSectionReader(j.out, 0, j.mark.Bytes), 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return nAnswers, nOthers, nil
		}
		if err != nil {
			return nAnswers, nOthers, fmt.Errorf("batch: %s: %w", j.path, err)
		}
		to, n := others, &nOthers
		if isAnswer(line) {
			to, n = answers, &nAnswers
		}
		if _, err := to.Write(line); err != nil {
			return nAnswers, nOthers, err
		}
		*n++
	}
}

// Missing writes a result with an error for each line of the input that has none in the output. It
// returns how many they are.
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
		if j.mark.holds(line) {
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

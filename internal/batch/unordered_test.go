package batch

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// slowly is an input whose lines come one at a time, with random pauses.
type slowly struct {
	lines []string
	rng   *rand.Rand
}

func (s *slowly) Read(p []byte) (int, error) {
	if len(s.lines) == 0 {
		return 0, io.EOF
	}
	if s.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(s.rng.IntN(200)) * time.Microsecond)
	}
	n := copy(p, s.lines[0])
	if s.lines[0] = s.lines[0][n:]; s.lines[0] == "" {
		s.lines = s.lines[1:]
	}
	return n, nil
}

// Ensure that runs without order that are ended at random moments, while their inputs are still
// being read and results are written out all the time, end with one result for each line, and ask
// no answered request again.
func TestUnorderedKilled(t *testing.T) {
	in, whole := input(60), t.TempDir()
	if _, err := answer(t, t.Context(), whole, in, newEcho(), Options{}); err != nil {
		t.Fatal(err)
	}
	want := sortedLines(free(t, filepath.Join(whole, "out")))
	for seed := range 8 {
		rng := rand.New(rand.NewPCG(uint64(seed), 2))
		dir := t.TempDir()
		for round := 0; ; round++ {
			e := newEcho()
			ctx, cancel := context.WithCancel(t.Context())
			limit := rng.IntN(12)
			if round > 20 {
				limit = 1 << 20
			}
			e.stop = func(n int) {
				if n > limit {
					cancel()
				}
			}
			before := answered(t, dir)
			_, err := answerFrom(t, ctx, dir, &slowly{slices.Collect(strings.Lines(in)), rng}, e,
				Options{Unordered: rng.IntN(8) > 0, pause: always})
			cancel()
			for id := range e.asked {
				if before[id] {
					t.Fatalf("seed %d: %s was asked again", seed, id)
				}
			}
			if err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("seed %d, round %d: %v", seed, round, err)
			}
		}
		if got := sortedLines(free(t, filepath.Join(dir, "out"))); !slices.Equal(got, want) {
			t.Fatalf("seed %d: got\n%s\nwant\n%s", seed, got, want)
		}
		j, err := begun(dir, "settings")
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if j.mark.Lines != len(want) {
			t.Fatalf("seed %d: got a journal of %d lines, want %d", seed, j.mark.Lines, len(want))
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// always has results written out all the time.
func always(ctx context.Context, over <-chan struct{}) bool {
	select {
	case <-time.After(50 * time.Microsecond):
		return true
	case <-over:
	case <-ctx.Done():
	}
	return false
}

func sortedLines(text string) []string { return slices.Sorted(strings.Lines(text)) }

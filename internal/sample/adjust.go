package sample

import (
	"fmt"
	"math"
)

// Forbidden is a bias with which a token is never chosen while there is another.
const Forbidden = -1e30

// Penalties change logits before a token is chosen, in llama.cpp's order: first the bias, then, of
// each token among the last RepeatLast of prompt and answer, logit ← logit·Repeat below 0 and
// logit/Repeat above; then, of each token of the answer that occurred n times,
// logit ← logit - n·Frequency - Presence, as OpenAI defines them. The zero value changes nothing.
type Penalties struct {
	Frequency, Presence float64 // -2 to 2
	Repeat              float64 // 0.1 to 10; 0, 1: none
	RepeatLast          int     // 0: 64; -1: all
	// Bias is added to the logits of tokens: -100 to 100, or Forbidden.
	Bias map[int32]float64
}

const repeatLast = 64

// check names the first field out of its range.
func (p *Penalties) check() error {
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"frequency-penalty", p.Frequency, -2, 2}, {"presence-penalty", p.Presence, -2, 2},
		{"repeat-penalty", p.Repeat, 0.1, 10},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) && f.v != 0 {
			return refused(f.name, f.v, fmt.Sprintf("a number from %v to %v", f.lo, f.hi))
		}
	}
	if p.RepeatLast < -1 {
		return refused("repeat-last-n", p.RepeatLast, "-1 (all) or more")
	}
	for id, v := range p.Bias {
		if id < 0 || !(v >= -100 && v <= 100) && v != Forbidden {
			return refused("logit-bias", fmt.Sprintf("%v for token %d", v, id), "-100 to 100")
		}
	}
	return nil
}

// repeats reports whether repeated tokens of the prompt count.
func (p *Penalties) repeats() bool { return p.Repeat != 0 && p.Repeat != 1 }

// active reports whether the penalties change anything.
func (p *Penalties) active() bool {
	return p.Frequency != 0 || p.Presence != 0 || p.repeats() || len(p.Bias) > 0
}

// Read adds tokens of the prompt.
func (s *Sampler) Read(ids ...int32) {
	if s.o.repeats() {
		s.history = append(s.history, ids...)
	}
}

// Accept adds a token of the answer.
func (s *Sampler) Accept(id int32) {
	if !s.o.active() {
		return
	}
	if s.counts == nil {
		s.counts = map[int32]int{}
	}
	s.counts[id]++
	s.Read(id)
}

// adjust returns the logits after bias and penalties.
func (s *Sampler) adjust(logits []float32) []float32 {
	p := &s.o.Penalties
	if !p.active() {
		return logits
	}
	s.adjusted = append(s.adjusted[:0], logits...)
	out := s.adjusted
	change := func(id int32, f func(v float64) float64) {
		if id >= 0 && int(id) < len(out) {
			out[id] = float32(f(float64(out[id])))
		}
	}
	for id, add := range p.Bias {
		change(id, func(v float64) float64 { return v + add })
	}
	if p.repeats() {
		last := p.RepeatLast
		if last == 0 {
			last = repeatLast
		}
		recent := s.history
		if last > 0 && last < len(recent) {
			recent = recent[len(recent)-last:]
		}
		done := make(map[int32]bool, len(recent))
		for _, id := range recent {
			if done[id] {
				continue
			}
			done[id] = true
			change(id, func(v float64) float64 {
				if v <= 0 {
					return v * p.Repeat
				}
				return v / p.Repeat
			})
		}
	}
	if p.Frequency != 0 || p.Presence != 0 {
		for id, n := range s.counts {
			change(id, func(v float64) float64 { return v - float64(n)*p.Frequency - p.Presence })
		}
	}
	for i, v := range out { // a bias on a large logit
		out[i] = min(v, math.MaxFloat32)
	}
	return out
}

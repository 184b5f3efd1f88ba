package engine

import (
	"runtime"
	"testing"
)

// Ensure that the newest value is found from any thread and after a collection, and that no more are kept than a few.
func TestSpare(t *testing.T) {
	var s spare[*int]
	if v, ok := s.take(); ok || v != nil {
		t.Errorf("an empty one gave %v", v)
	}
	values := [spareMost + 1]int{}
	for i := range values {
		s.put(&values[i])
	}
	runtime.GC()
	runtime.GC()
	for i := spareMost - 1; i >= 0; i-- {
		got := make(chan *int)
		go func() { v, _ := s.take(); got <- v }()
		if v := <-got; v != &values[i] {
			t.Errorf("got another value than the newest, number %d", i)
		}
	}
	if _, ok := s.take(); ok {
		t.Errorf("more than %d were kept", spareMost)
	}
}

package nn

import (
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Ensure that keys appended for a look and taken back leave a layer the pages that it had reserved,
// neither fewer nor more, and that Truncate releases them.
func TestRetract(t *testing.T) {
	pool := NewKVPool(1, 8, false)
	l := pool.NewCache(1).Layer(0)
	rows := func(n int) {
		l.Append(nil, make([]float32, 8*n), make([]float32, 8*n), make([]Pos, n), nil)
	}
	for _, c := range []struct{ keys, reserved, look int }{
		{0, 10, 70}, {0, 130, 70}, {5, kernel.PageKeys, 1}, {kernel.PageKeys, 1, 200},
	} {
		rows(c.keys)
		l.Reserve(c.reserved, 0)
		held, used := l.Held(), pool.Used()
		if want := PagesOf(c.keys + c.reserved); held != want {
			t.Fatalf("%+v: %d pages reserved, want %d", c, held, want)
		}
		rows(c.look)
		l.Retract(c.keys, held)
		if l.Held() != held || pool.Used() != used || len(l.Pos) != c.keys {
			t.Errorf("%+v: %d pages, %d of the pool, %d keys, want %d, %d and %d", c, l.Held(),
				pool.Used(), len(l.Pos), held, used, c.keys)
		}
		if l.Truncate(0); l.Held() != 0 || pool.Used() != 0 {
			t.Errorf("%+v: %d pages after Truncate", c, l.Held())
		}
	}
}

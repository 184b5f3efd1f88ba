package cli

import (
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/restore-vlm/restore"
)

// Ensure that the limit of a process's memory sets the heap's, unless a variable does.
func TestLimitHeap(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "") // restored at the end
	if err := os.Unsetenv("GOMEMLIMIT"); err != nil {
		t.Fatal(err)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	var m ModelFlags
	open := func(memory int64) int64 {
		debug.SetMemoryLimit(math.MaxInt64)
		model, err := m.Opened(t.Context(), &restore.Options{MemoryBytes: memory})
		if err != nil {
			t.Fatal(err)
		}
		defer model.Close()
		return debug.SetMemoryLimit(-1)
	}
	const memory = 2000 * MB
	if got := open(0); got != math.MaxInt64 {
		t.Errorf("no limit: the heap's is %d", got)
	}
	if got := open(memory); got > memory || got < memory/2 {
		t.Errorf("limit %d: the heap's is %d", memory, got)
	}
	if got := open(50 * MB); got != leastHeap {
		t.Errorf("limit of 50 MB: the heap's is %d, want %d", got, leastHeap)
	}
	t.Setenv("GOMEMLIMIT", "3GiB")
	if got := open(memory); got != math.MaxInt64 {
		t.Errorf("with a variable: the heap's is %d", got)
	}
}

package kernel

import (
	"strings"
	"testing"
)

// forEachImpl runs f with every implementation that this CPU and build have, and restores the
// choice.
func forEachImpl(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	before := Implementation()
	t.Cleanup(func() {
		if err := SetImplementation(before); err != nil {
			t.Error(err)
		}
	})
	for _, name := range Implementations() {
		if err := SetImplementation(name); err != nil {
			t.Fatal(err)
		}
		t.Run(name, f)
	}
}

func TestForEachImplRestores(t *testing.T) {
	before := Implementation()
	var seen []string
	t.Run("inner", func(t *testing.T) {
		forEachImpl(t, func(*testing.T) { seen = append(seen, Implementation()) })
	})
	if got := Implementation(); got != before {
		t.Errorf("implementation %s after the loop, want %s", got, before)
	}
	if len(seen) != len(Implementations()) || seen[0] != "go" {
		t.Errorf("saw %v, want %v", seen, Implementations())
	}
}

func TestSetImplementation(t *testing.T) {
	before := Implementation()
	for _, name := range []string{"", "sse9", "AVX2"} {
		if err := SetImplementation(name); err == nil {
			t.Errorf("SetImplementation(%q) = nil, want an error", name)
		}
		if Implementation() != before {
			t.Fatalf("SetImplementation(%q) changed the choice", name)
		}
	}
}

func TestImplementationFromEnvironment(t *testing.T) {
	before := Implementation()
	if err := implFromEnvironment(""); err != nil {
		t.Errorf("unset: %v", err)
	}
	err := implFromEnvironment("sse9")
	if err == nil || !strings.Contains(err.Error(), "KERNEL") ||
		!strings.Contains(err.Error(), before) {
		t.Errorf("KERNEL=sse9: %v, want an error that names the variable and the choice", err)
	}
	if Implementation() != before {
		t.Errorf("KERNEL=sse9 changed the choice to %s", Implementation())
	}
}

package kernel

import "testing"

// Ensure that features describe the implementation in use, not the processor.
func TestFeatures(t *testing.T) {
	defer SetImplementation(Implementation())
	for _, name := range Implementations() {
		if err := SetImplementation(name); err != nil {
			t.Fatal(err)
		}
		got := InUse()
		switch name {
		case "avx2":
			if got != (Features{Words: true}) {
				t.Errorf("%s: %+v, want Words alone", name, got)
			}
		case "go", "neon":
			if got != (Features{}) {
				t.Errorf("%s: %+v, want none", name, got)
			}
		case "avxvnni":
			if got != (Features{VNNI: true}) {
				t.Errorf("%s: %+v, want VNNI alone", name, got)
			}
		case "amx":
			if got != (Features{VNNI: true, BF16: true}) {
				t.Errorf("%s: %+v, want both", name, got)
			}
		}
	}
}

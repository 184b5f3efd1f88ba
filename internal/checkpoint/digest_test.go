package checkpoint

import (
	"testing"

	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that a digest distinguishes models by documents, names, shapes, types and values, and not
// by the place of their files.
func TestDigest(t *testing.T) {
	const n = 1 << 16
	model := func(change func(s *Store, w *Weight)) [32]byte {
		t.Helper()
		s, err := FromConfig("m", []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		w := &Weight{Tensor: tensor.Tensor{
			DType: tensor.BF16, Shape: []int{n / 64, 32}, Data: make([]byte, n),
		}}
		s.Weights = map[string]*Weight{"a": w}
		change(s, w)
		s.Seal()
		return Digest(s)
	}
	same := model(func(*Store, *Weight) {})
	if got := model(func(s *Store, _ *Weight) {
		s.What.Name, s.What.Files, s.Docs.Config.From = "n", []string{"/n"}, "n.json"
	}); got != same {
		t.Error("another place: digests differ")
	}
	for name, change := range map[string]func(s *Store, w *Weight){
		"config":     func(s *Store, _ *Weight) { s.Docs.Config.Data = []byte(`{ }`) },
		"template":   func(s *Store, _ *Weight) { s.Docs.Template.Data = []byte("x") },
		"part":       func(s *Store, _ *Weight) { s.Docs.Settings.Data = []byte("{}") },
		"name":       func(s *Store, w *Weight) { s.Weights = map[string]*Weight{"b": w} },
		"shape":      func(_ *Store, w *Weight) { w.Shape = []int{32, n / 64} },
		"type":       func(_ *Store, w *Weight) { w.DType = tensor.F16 },
		"first byte": func(_ *Store, w *Weight) { w.Data[0] = 1 },
		"middle":     func(_ *Store, w *Weight) { w.Data[n/3] = 1 },
		"last byte":  func(_ *Store, w *Weight) { w.Data[n-1] = 1 },
		"kept otherwise": func(_ *Store, w *Weight) {
			w.Stored, w.Raw, w.Data = "BF16", [][]byte{w.Data[:8], w.Data[8:]}, nil
		},
	} {
		if model(change) == same {
			t.Errorf("%s: the digest is the same", name)
		}
	}
}

package clip

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/model"
)

// Ensure that pictures that go through the blocks in several parts have the states and scores, bit
// for bit, that they have all at once.
func TestParts(t *testing.T) {
	const items = 300 // 120, 120 and 60: products of few rows add in another order
	e := random(Config{
		Hidden: 16, Heads: 2, Layers: 3, MLP: 24, ImageSide: 28, Patch: 7, Act: "quick_gelu",
	})
	if parts := (items - 1) / e.together(items); parts != 2 {
		t.Fatalf("%d parts, want 3", parts+1)
	}
	pool := kernel.NewPool(2)
	defer pool.Close()
	px := vector(items * 3 * 28 * 28)
	features := []int{2, 0}
	need := model.Needs{
		ClsAttn: true, Keys: true, Last: true, Class: []int{0}, Received: []int{0, 1},
	}
	whole, err := e.encode(&model.Run{Pool: pool}, px, items, features, need)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]float32{
		whole.ClsAttn, whole.Keys, whole.LastQuery, whole.LastKeys, whole.Class[0],
		whole.Received[1],
	} {
		if part == nil {
			t.Fatal("something that is needed is missing")
		}
	}
	got, err := e.Encode(&model.Run{Pool: pool}, px, items, features, need)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, got); diff != "" {
		t.Error(diff)
	}
}

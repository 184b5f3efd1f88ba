// Ownmethod is a reduction method of one's own, in one function: it keeps the tokens whose features are longest. Registered, it
// works like any other: under RESTORE, drawn, timed and measured against the built-in controls.
package main

import (
	"cmp"
	"context"
	"fmt"
	"image/png"
	"io"
	"log"
	"os"
	"slices"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/overlay"
	"github.com/restore-vlm/restore/reduce"
)

// longest keeps the k tokens of in whose features have the largest norm.
func longest(in *reduce.Input, k int) ([]int32, error) {
	order, length := make([]int32, in.N), make([]float64, in.N)
	for t := range order {
		order[t] = int32(t)
		for _, v := range in.X[t*in.C : (t+1)*in.C] {
			length[t] += float64(v) * float64(v)
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(length[b], length[a]) })
	return order[:k], nil
}

func main() {
	if err := reduce.Register(reduce.Method{Name: "longest", Title: "tokens with the longest features"}, longest); err != nil {
		log.Fatal(err)
	}
	if err := show(os.Stdout, "longest.png", 8); err != nil {
		log.Fatal(err)
	}
}

// show asks the embedded model through the method, draws what was kept and compares it with the controls on n drawn pictures.
func show(w io.Writer, drawing string, n int) error {
	m, err := restore.Open("", restore.OpenOptions{})
	if err != nil {
		return err
	}
	defer m.Close()
	var pic *imageproc.Picture
	for item := range eval.Drawn(1) {
		pic = item.Picture
	}
	how := reduce.Options{Base: "longest", NVis: 64, Restore: true}
	ans, err := m.Ask(context.Background(), restore.Request{Prompt: "Describe the image.", Images: []*imageproc.Picture{pic}, Reduce: how})
	if err != nil {
		return err
	}
	r := ans.Report
	fmt.Fprintf(w, "%s\n%d tokens -> %d kept + %d merged; select %v, merge %v\n\n", ans.Text, r.Before, r.Kept, r.Merged, r.Select, r.Merge)
	f, err := os.Create(drawing)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := png.Encode(f, overlay.Draw(pic, r.Images[0].Reduction, r.Images[0].Grids)); err != nil {
		return err
	}
	var settings []eval.Setting
	for _, base := range []string{"longest", "random", "grid", "pool"} {
		settings = append(settings, eval.Setting{Base: base, NVis: 64}, eval.Setting{Base: base, NVis: 64, Restore: true})
	}
	table, err := eval.Compare(context.Background(), m, eval.Drawn(n), n, settings, 0, eval.RunOptions{})
	if err != nil {
		return err
	}
	return table.WriteTable(w)
}

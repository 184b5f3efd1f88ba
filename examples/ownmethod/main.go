// Ownmethod defines its own reduction method in one function: it keeps the tokens with the longest
// features. Once registered, it works like any other method: under RESTORE, with its own parameter,
// drawn and timed.
//
//	go run ./ownmethod ../docs/scene.png longest.png
package main

import (
	"cmp"
	"context"
	"fmt"
	"image/png"
	"io"
	"log"
	"math"
	"os"
	"slices"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/reduce"
)

// longest keeps the tokens whose features have the largest norm.
type longest struct {
	power float64 // of the norm
}

// Declare names the parameter: --longest-power, RESTORE_LONGEST_POWER, longest_power.
func (l *longest) Declare(d *reduce.Declaration) {
	l.power = 2
	d.Float(&l.power, reduce.Parameter{
		Name: "longest-power", Least: new(1.0), Help: "power of the norm",
	})
}

// Keep returns k of the tokens of in, the longest first.
func (l *longest) Keep(in *reduce.Input, k int) ([]int32, error) {
	order, norm := make([]int32, in.N), make([]float64, in.N)
	for t := range order {
		order[t] = int32(t)
		for _, v := range in.X[t*in.C : (t+1)*in.C] {
			norm[t] += math.Pow(math.Abs(float64(v)), l.power)
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(norm[b], norm[a]) })
	return order[:k], nil
}

func init() {
	m := reduce.Method{Name: "longest", Title: "tokens with the longest features"}
	err := restore.RegisterMethod(m, func() reduce.Criterion { return new(longest) })
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: ownmethod PICTURE DRAWING")
	}
	if err := run(context.Background(), os.Stdout, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// run asks the embedded model about a picture with the method, and draws the kept tokens.
func run(ctx context.Context, w io.Writer, file, drawing string) error {
	m, err := restore.Open(ctx, "", nil)
	if err != nil {
		return err
	}
	defer m.Close()
	pic, err := restore.OpenPicture(file, nil)
	if err != nil {
		return err
	}
	ans, err := m.Ask(ctx, restore.Request{
		Prompt:   "Describe the image.",
		Pictures: []*restore.Picture{pic},
		Reduction: &restore.Reduction{
			Base: "longest", NVis: 64, Options: map[string]any{"longest-power": 1.5},
		},
	})
	if err != nil {
		return err
	}
	p := ans.Pictures[0]
	fmt.Fprintln(w, ans.Text)
	fmt.Fprintln(w, p.Reduction.Options)
	out, err := os.Create(drawing)
	if err != nil {
		return err
	}
	if err := png.Encode(out, p.Draw()); err != nil {
		return err
	}
	return out.Close()
}

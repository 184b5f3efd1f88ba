package reduce_test

import (
	"cmp"
	"fmt"
	"log"
	"math"
	"slices"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/reduce"
)

// longest keeps the tokens whose features have the largest norm; the norm is a parameter.
type longest struct{ norm float64 }

// Declare ties the parameter to its name.
func (l *longest) Declare(d *reduce.Declaration) {
	l.norm = 2
	d.Float(&l.norm, reduce.Parameter{
		Name: "longest-norm", Least: new(1.), Help: "norm that measures a token's features",
	})
}

// Keep implements reduce.Criterion.
func (l *longest) Keep(in *reduce.Input, k int) ([]int32, error) {
	order, length := make([]int32, in.N), make([]float64, in.N)
	for t := range order {
		order[t] = int32(t)
		for _, v := range in.X[t*in.C : (t+1)*in.C] {
			length[t] += math.Pow(math.Abs(float64(v)), l.norm)
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(length[b], length[a]) })
	return order[:k], nil
}

// A method of your own is a criterion. RESTORE merges what it does not keep.
func ExampleCriterion() {
	m := reduce.Method{Name: "longest", Title: "tokens with the longest features"}
	err := restore.RegisterMethod(m, func() reduce.Criterion { return new(longest) })
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range restore.Parameters() {
		if p.Name == "longest-norm" {
			fmt.Println(p.JSONName(), p.Default, p.Range(), p.Methods)
		}
	}
	// Output:
	// longest_norm 2 at least 1 [longest]
}

// A reduction is data: which tokens each row of the decoder stands for, and its position.
func ExampleReduction() {
	r := &reduce.Reduction{N: 4}
	r.SetRows([]reduce.Row{
		{Members: []int32{0}, Anchor: 0, Size: 1, Position: 0},
		{Members: []int32{1, 2, 3}, Anchor: 3, Merged: true, Size: 3, Position: 2},
	})
	kept, merged := r.Counts()
	fmt.Println(kept, "kept,", merged, "merged")
	for _, row := range r.Rows {
		fmt.Println(row.Members, "at", row.Position)
	}
	// Output:
	// 1 kept, 1 merged
	// [0] at 0
	// [1 2 3] at 2
}

// Values are checked one by one; texts are read as on a command line.
func ExampleParameter_Parse() {
	p := reduce.Parameter{Name: "dart-pivots", Kind: reduce.Int, Least: new(1.)}
	v, err := p.Parse("064")
	fmt.Println(v, err)
	_, err = p.Parse("0")
	fmt.Println(err)
	// Output:
	// 64 <nil>
	// reduce: dart-pivots: got 0, want at least 1
}

package methods

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// forget takes a test's own methods out of the table again.
func forget(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		registered.Lock()
		registered.list = nil
		registered.Unlock()
	})
}

// declaring is a criterion with one more parameter, whose value is 3.
type declaring struct {
	reduce.Criterion
	reduce.Parameter
}

func (c declaring) Declare(d *reduce.Declaration) {
	if of, ok := c.Criterion.(reduce.Declarer); ok {
		of.Declare(d)
	}
	d.Func(c.Parameter, func(any) error { return nil }, func() any { return 3 })
}

func ends() reduce.Criterion { return reduce.KeepFunc(keepEnds) }

func keepEnds(in *reduce.Input, k int) ([]int32, error) {
	kept := make([]int32, k)
	for i := range kept {
		if kept[i] = int32(i / 2); i%2 == 1 {
			kept[i] = int32(in.N - 1 - i/2)
		}
	}
	return kept, nil
}

// Ensure that a registered method runs alone and with RESTORE, in views and whole, keeps every
// invariant, and is listed.
func TestRegister(t *testing.T) {
	forget(t)
	if err := Register(reduce.Method{Name: "ends", Needs: []reduce.Need{reduce.ClsAttn}},
		ends); err != nil {
		t.Fatal(err)
	}
	all := Methods()
	if m := all[len(all)-1]; m.Name != "ends" || m.Title != "ends" ||
		m.Site != reduce.AfterEncoder {
		t.Errorf("listed as %+v", m)
	}
	in := randomInput(3, 5, 5)
	for _, n := range []int{1, 6, 24, 25} {
		for _, on := range []bool{false, true} {
			checkMethod(t, in, Options{Base: "ends", NVis: n, Restore: on})
		}
	}
	r := mustReduce(t, in, Options{Base: "ends", NVis: 4})
	if !slices.Equal(r.Kept, []int32{0, 24, 1, 23}) || len(r.Rows) != 4 || r.Rows[1].Position != 1 {
		t.Errorf("kept %v, rows %+v", r.Kept, r.Rows)
	}
	wantError(t, &reduce.Input{N: 25, C: in.C, X: in.X}, Options{Base: "ends", NVis: 4},
		"ends: needs cls_attn")
}

// Ensure that names, sites and answers that cannot be are refused by name.
func TestRegisterRefuses(t *testing.T) {
	forget(t)
	for want, m := range map[string]reduce.Method{
		`name: got "holov", which is taken`:              {Name: "holov"},
		`name: got "restore", want 1 to 32`:              {Name: "restore"},
		`name: got "My Method", want 1 to 32`:            {Name: "My Method"},
		`name: got "", want 1 to 32`:                     {},
		`a: site: got "inside the decoder", want "after`: {Name: "a", Site: reduce.InsideDecoder},
		"a: parameters: got 1, want none":                {Name: "a", Parameters: []reduce.Parameter{{Name: "x"}}},
		"a: got a method that reads the question":        {Name: "a", Text: true},
		`a: needs: got "text" and "question"`:            {Name: "a", Needs: []reduce.Need{reduce.PromptText, reduce.QuestionText}},
		"a: got a method that finds its budget":          {Name: "a", Adaptive: true},
		`a: needs: got "smell", want one of ["cls_attn"`: {Name: "a", Needs: []reduce.Need{"smell"}},
	} {
		if err := Register(m, ends); err == nil ||
			!strings.Contains(err.Error(), "methods: register: "+want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := Register(reduce.Method{Name: "a"}, nil); err == nil ||
		!strings.Contains(err.Error(), "a: got no criterion") {
		t.Error(err)
	}
	for want, p := range map[string]reduce.Parameter{
		`parameter: got "at-most", want a new name`:        {Name: "at-most"},
		`parameter: got "defaults", want a new name`:       {Name: "defaults"},
		`parameter: got "n-vis", want a new name`:          {Name: "n-vis"},
		`parameter: got "keep", want a new name`:           {Name: "keep"},
		`parameter: got "encoder-blocks", want a new name`: {Name: "encoder-blocks"},
		`parameter: got "dart-pivots", want a new name`:    {Name: "dart-pivots"},
		`parameter: got "X", want a new name`:              {Name: "X"},
		`parameter x: got a budget, want n-vis to be it`:   {Name: "x", Budget: true},
		`parameter x: got Above without Least, want both`:  {Name: "x", Above: true},
		`parameter x: got kind 6, want a kind of`:          {Name: "x", Kind: 6},
		`default: reduce: x: got 3, want at least 4`:       {Name: "x", Least: new(4.)},
		`default: reduce: x: got 3, want more than 3`:      {Name: "x", Least: new(3.), Above: true},
		`default: reduce: x: got 3, want one of `:          {Name: "x", Kind: reduce.Choice},
	} {
		err := Register(reduce.Method{Name: "a"}, func() reduce.Criterion {
			return declaring{ends(), p}
		})
		if err == nil || !strings.Contains(err.Error(), "methods: register: a: "+want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	twice := func() reduce.Criterion {
		x := reduce.Parameter{Name: "x"}
		return declaring{declaring{ends(), x}, x}
	}
	if err := Register(reduce.Method{Name: "a"}, twice); err == nil ||
		!strings.Contains(err.Error(), `a: parameter: got "x", want a new name`) {
		t.Error(err)
	}
	in := randomInput(3, 5, 5)
	for name, keep := range map[string]reduce.KeepFunc{
		"got 1 tokens, want 3":                 func(*reduce.Input, int) ([]int32, error) { return []int32{1}, nil },
		"token 25 is out of 0..24 or repeated": func(*reduce.Input, int) ([]int32, error) { return []int32{1, 2, 25}, nil },
		"token 2 is out of 0..24 or repeated":  func(*reduce.Input, int) ([]int32, error) { return []int32{2, 1, 2}, nil },
		"no idea":                              func(*reduce.Input, int) ([]int32, error) { return nil, errors.New("no idea") },
	} {
		method := "m" + strings.ReplaceAll(strings.Fields(name)[0]+strings.Fields(name)[1], ".", "")
		if err := Register(reduce.Method{Name: method}, func() reduce.Criterion {
			return keep
		}); err != nil {
			t.Fatal(err)
		}
		wantError(t, in, Options{Base: method, NVis: 3}, method, name)
	}
}

// Ensure that methods can be registered while others are looked up, and that one name is given away
// once.
func TestRegisterConcurrent(t *testing.T) {
	forget(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	given := 0
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if Register(reduce.Method{Name: "mine"}, ends) == nil {
				mu.Lock()
				given++
				mu.Unlock()
			}
			if _, err := lookup("mine"); err != nil {
				t.Error(err)
			}
			if len(Methods()) != len(table)+1 {
				t.Errorf("%d methods", len(Methods()))
			}
		}()
	}
	wg.Wait()
	if given != 1 {
		t.Errorf("one name was given to %d", given)
	}
}

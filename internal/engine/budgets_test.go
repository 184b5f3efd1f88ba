package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// traced traces a prompt without the attention matrices, and two tokens of its answer.
func traced(
	t testing.TB, e *engine.Engine, in map[string]*tensor.Tensor, o methods.Options,
) (map[string]*tensor.Tensor, error) {
	return lab.Trace(t.Context(), e, lab.TraceRequest{
		Inputs: in, Reduce: o, Tokens: 2, NoMaps: true,
	})
}

// budgets is what methods may leave of a prompt's pictures.
type budgets struct {
	rows   int // of pictures in the prompt, with those that end lines
	parts  int // pictures or tiles with a budget of their own
	tokens int // of a part; 0: parts differ
}

// onePart returns the budget of pictures whose tokens are the first axis of a stage.
func onePart(stage string) func(plain map[string]*tensor.Tensor) budgets {
	return func(plain map[string]*tensor.Tensor) budgets {
		n := plain[stage].Shape[0]
		return budgets{n, 1, n}
	}
}

// checkMethods checks that every method reads the pictures of a checkpoint's prompt with a budget
// of few tokens for each part, or is refused for a named reason, that a budget of all tokens equals
// no reduction, and that results do not depend on the number of threads.
func checkMethods(
	t *testing.T, name, prompt string, few int,
	of func(plain map[string]*tensor.Tensor) budgets, refused map[string]string,
) {
	t.Helper()
	e, one := open(t, "testdata/"+name, 2), open(t, "testdata/"+name, 1)
	in := reference(t, name, prompt)
	plain, err := traced(t, e, in, methods.Options{})
	must(t, err)
	b := of(plain)
	want := plain["embeds"].Shape[0] - b.rows + few*b.parts
	positions := "positions"
	if plain[positions] == nil {
		positions = "position_ids" // on three axes
	}
	for _, m := range methods.Methods()[1:] { // not "none"
		for _, on := range []bool{false, true} {
			what := fmt.Sprintf("%s %s restore=%v", prompt, m.Name, on)
			o := methods.Options{Base: m.Name, NVis: few, Restore: on}
			if m.Site == reduce.InsideDecoder {
				o.NVis, o.KeepRatio = 0, 0.65
			}
			got, err := traced(t, e, in, o)
			if why, ok := refused[m.Name]; ok {
				if err == nil || !strings.Contains(err.Error(), why) {
					t.Errorf("%s: got %v, want a refusal: %s", what, err, why)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			again, err := traced(t, one, in, o)
			must(t, err)
			same(t, what+", 1 thread", again, got, "logits", "gen.logits")
			if m.Site == reduce.InsideDecoder {
				continue
			}
			if rows := got["embeds"].Shape[0]; rows != want {
				t.Errorf("%s: %d rows, want %d", what, rows, want)
			}
			if b.tokens == 0 {
				continue
			}
			got, err = traced(t, e, in, methods.Options{Base: m.Name, NVis: b.tokens, Restore: on})
			if err != nil {
				t.Errorf("%s, all tokens: %v", what, err)
				continue
			}
			same(t, what+" with all tokens", got, plain, "logits", "gen.tokens", "gen.logits",
				positions)
		}
	}
}

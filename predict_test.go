package restore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
)

func ExampleModel_PredictMemory() {
	m, err := restore.Open(context.Background(), "", &restore.Options{Describe: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	q := restore.Question{Width: 336, Height: 336, NVis: 64, Text: 60, Generated: 32}
	p, err := m.PredictMemory(q, restore.Default)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Kept, "of", p.Tokens, "visual tokens, a prompt of", p.Prompt)
	fmt.Println(p.Peak == p.Weights+p.Cache+p.Encoder+p.Decoder+p.Program)
	// Output:
	// 64 of 576 visual tokens, a prompt of 124
	// true
}

// Ensure that predicted times grow with the tokens, that narrower weights take less memory, and
// that what cannot be predicted is refused.
func TestPredict(t *testing.T) {
	m, err := restore.Open(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	q := restore.Question{Width: 336, Height: 336, NVis: 64, Text: 60, Generated: 8}
	few, err := m.PredictTimes(q, restore.Default, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.NVis = 0
	all, err := m.PredictTimes(q, restore.Default, nil)
	if err != nil || !(few.Prefill > 0 && all.Prefill > few.Prefill && few.Token > 0 &&
		few.First >= few.Encode+few.Prefill) {
		t.Errorf("64 tokens %+v, all %+v, %v", few, all, err)
	}
	last := int64(1) << 62
	for _, w := range []restore.WeightType{restore.F32, restore.BF16, restore.Q8, restore.Q4} {
		n, err := m.WeightBytes(w)
		if err != nil || n >= last {
			t.Errorf("%s: %d bytes after %d, %v", w, n, last, err)
		}
		last = n
	}
	stored, err := m.WeightBytes(restore.AsStored)
	if d := m.Details(); err != nil || d.Resident != stored || d.Params == 0 ||
		d.Encoder.Type != "stored" || len(d.Vision) == 0 || d.Packed {
		t.Errorf("%+v, %d bytes as stored, %v", d, stored, err)
	}
	if _, err := m.WeightBytes("q3"); err == nil {
		t.Error("another type: got no error")
	}
	if _, err := m.PredictMemory(q, restore.Default); err == nil {
		t.Error("the memory of a process that holds weights: got no error")
	}
	if decoder, encoder, keysValues := restore.WeightTypes(); len(decoder) != 5 ||
		len(encoder) != 6 || len(keysValues) != 2 {
		t.Errorf("%v, %v, %v", decoder, encoder, keysValues)
	}
	if n, ok := restore.FreeMemory(); ok && n <= 0 {
		t.Errorf("%d bytes are free", n)
	}
}

// Ensure that a described model checks the files of its weights, and describes RESTORE itself.
func TestVerify(t *testing.T) {
	m, err := restore.Open(t.Context(), "", &restore.Options{Describe: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Verify(); err != nil {
		t.Error(err)
	}
	if restore.OnTop().Name != "restore" {
		t.Errorf("got %q", restore.OnTop().Name)
	}
}

// Ensure that a shape has the published model's number of weights, that any config.json is a shape,
// and that another name is refused.
func TestDescribeShape(t *testing.T) {
	const params = int64(7063427072 - 2048) // of llava-1.5-7b, without the tower's last norm
	m, err := restore.DescribeShape(restore.Shapes()[0], nil, &restore.Options{Weights: "q4"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if d := m.Details(); d.Name != "llava-1.5-7b" || d.Params != params {
		t.Errorf("%s has %d weights, want %d", d.Name, d.Params, params)
	}
	var option *errs.OptionError
	if _, err := restore.DescribeShape("llava-7b", nil, nil); !errors.As(err, &option) ||
		option.Name != "shape" || !strings.Contains(option.Want, "llava-1.5-7b, ") {
		t.Errorf("an unknown shape: %v", err)
	}
	config := []byte(`{"architectures": ["GPT"]}`)
	if _, err := restore.DescribeShape("config.json", config, nil); err == nil ||
		!strings.Contains(err.Error(), `config.json: architectures: got ["GPT"]`) {
		t.Errorf("another architecture: %v", err)
	}
}

// Ensure that a prediction for another type of weights is the one of a model that was opened with
// it, keys and values included.
func TestPredictAsOpened(t *testing.T) {
	open := func(w restore.WeightType) *restore.Model {
		m, err := restore.Open(t.Context(), "", &restore.Options{Weights: w, Describe: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	stored := open(restore.AsStored)
	q := restore.Question{Width: 336, Height: 336, NVis: 64, Text: 60, Generated: 32}
	for _, w := range []restore.WeightType{restore.AsStored, restore.Q4, restore.Q8, restore.F32} {
		got, err := stored.PredictMemory(q, w)
		if err != nil {
			t.Fatal(err)
		}
		m := open(w)
		want, err := m.PredictMemory(q, restore.Default)
		if err != nil {
			t.Fatal(err)
		}
		got.Peak -= got.Program // which grows from model to model
		want.Peak -= want.Program
		got.Program, want.Program = 0, 0
		if *got != *want {
			t.Errorf("%s: memory %+v, want %+v", w, got, want)
		}
		time, err := stored.PredictTimes(q, w, nil)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := m.PredictTimes(q, restore.Default, nil); err != nil || *time != *same {
			t.Errorf("%s: times %+v, want %+v, %v", w, time, same, err)
		}
	}
}

package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// wideTower is a bundle in memory of a model whose vision tower has the given width, in F16. Its
// projector's first weight is already in blocks.
func wideTower(t *testing.T, width string) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.FromConfig("wide", []byte(strings.Replace(`{
		"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
		"image_token_index": 10,
		"text_config": {"model_type": "llama", "hidden_size": 32, "intermediate_size": 32,
			"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64},
		"vision_config": {"model_type": "clip_vision_model", "hidden_size": WIDTH,
			"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
			"image_size": 28, "patch_size": 14}}`, "WIDTH", width, 1)))
	if err != nil {
		t.Fatal(err)
	}
	weights := map[string]*checkpoint.Weight{}
	_, err = New(s, Options{Threads: 1, EncoderQuant: "stored"}, Hooks{
		Describe: true,
		Weights: func(_ *nn.Memory, name string, d tensor.DType, shape []int) *tensor.Tensor {
			n := 2
			for _, k := range shape {
				n *= k
			}
			w := tensor.Tensor{DType: tensor.F16, Shape: shape, Data: make([]byte, n)}
			weights[name] = &checkpoint.Weight{Tensor: w}
			if strings.HasSuffix(name, "linear_1.weight") {
				w.DType = tensor.Q4
				m := &kernel.Matrix{Format: kernel.Q4, N: shape[0], K: shape[1]}
				w.Data = make([]byte, m.Bytes())
				weights[name] = &checkpoint.Weight{
					Tensor: w, Read: func(dst []float32, _ int) error { clear(dst); return nil },
				}
			}
			return &w
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Weights = weights
	s.Seal()
	return s
}

// Ensure that a big tower's weights become q8 on a processor with VNNI, and q12 on one with neither
// VNNI nor BF16 that multiplies 16-bit integers fast, that this is said, that the caller's type
// counts, and that nothing changes for other towers and processors.
func TestEncoderByProcessor(t *testing.T) {
	defer func(f func() kernel.Features) { instructions = f }(instructions)
	vnni, avx2 := kernel.Features{VNNI: true}, kernel.Features{Words: true}
	for _, c := range []struct {
		name, width string
		cpu         kernel.Features
		asked, want string
		chosen      bool
	}{
		{"VNNI", "1024", vnni, "", "q8", true},
		{"VNNI, as stored", "1024", vnni, "stored", "stored", false},
		{"VNNI, f32", "1024", vnni, "f32", "f32", false},
		{"VNNI, q8", "1024", vnni, "q8", "q8", false},
		{"VNNI, narrow", "512", vnni, "", "stored", false},
		{"VNNI and BF16", "1024", kernel.Features{VNNI: true, BF16: true}, "", "q8", true},
		{"BF16", "1024", kernel.Features{BF16: true}, "", "stored", false},
		{"AVX2", "1024", avx2, "", "q12", true},
		{"AVX2, as stored", "1024", avx2, "stored", "stored", false},
		{"AVX2, narrow", "512", avx2, "", "stored", false},
		{"arm64", "1024", kernel.Features{}, "", "stored", false},
	} {
		instructions = func() kernel.Features { return c.cpu }
		said := []string{}
		o := Options{
			Threads: 1, EncoderQuant: c.asked, Warn: func(s string) { said = append(said, s) },
		}
		e, err := New(wideTower(t, c.width), o, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		i := e.Info()
		if i.Encoder == nil || i.Encoder.Type != c.want || (i.Encoder.Why != "") != c.chosen {
			t.Errorf("%s: %+v, want %s, chosen %v", c.name, i.Encoder, c.want, c.chosen)
		}
		if note := strings.Join(said, "\n"); strings.Contains(note, "encoder-quant: "+c.want) !=
			c.chosen || c.chosen && !strings.Contains(note, `"stored" keeps`) {
			t.Errorf("%s: said %q", c.name, note)
		}
		q8, q12, q4 := i.Kept["Q8"] > 0, i.Kept["Q12"] > 0, i.Kept["Q4"] > 0
		if q8 != (c.want == "q8") || q12 != (c.want == "q12") ||
			q4 != (c.chosen || c.want == "stored") {
			t.Errorf("%s: kept %v", c.name, i.Kept)
		}
		// Predictions and a packed file have the same types.
		as, err := e.SourceAs("")
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := as.Resident(); n != i.Resident {
			t.Errorf("%s: predicted %d bytes, want %d", c.name, n, i.Resident)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		var b bytes.Buffer
		if err := Pack(wideTower(t, c.width), o, &b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "model.rst")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, other := range []kernel.Features{vnni, avx2, {}} { // whichever processor opens it
			instructions = func() kernel.Features { return other }
			p, err := openFile(path)
			if err != nil {
				t.Fatal(err)
			}
			pi := p.Info()
			if pi.Encoder.Type != c.want || pi.Encoder.Why != "" || pi.Resident != i.Resident {
				t.Errorf("%s, packed: %+v of %d bytes, want %s of %d", c.name, pi.Encoder,
					pi.Resident, c.want, i.Resident)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		if c.want == "stored" {
			ck, err := formats.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			p, err := New(ck, Options{Threads: 1, EncoderQuant: "stored"}, Hooks{})
			if err != nil {
				t.Fatalf("%s, packed as stored: %v", c.name, err)
			}
			p.Close()
		}
	}
}

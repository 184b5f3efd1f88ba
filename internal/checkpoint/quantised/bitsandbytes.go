package quantised

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// bitsandbytes returns what reader does for bitsandbytes' layouts. With 4 bits (NF4 and FP4) the
// i-th number of a weight [out, in] in row-major order is
//
//	table[q[i]]·a[i/size]                                                            (2)
//
// rounded to the type that the weight had before. The table (quant_map) is in the file. Two q are
// in a byte, the first one in its higher half. a (absmax) are floating numbers or, with double
// quantisation, bytes b: a[j] = nested_quant_map[b[j]]·nested_absmax[j/nested_blocksize] + offset.
// With 8 bits (LLM.int8) the weight is as in (1), with one scale for each output, SCB/127. Source:
// bitsandbytes 0.50 (functional.py, dequantize_4bit and int8_vectorwise_dequant).
func (c *settings) bitsandbytes() (func(*parts) (*checkpoint.Weight, error), string, error) {
	switch {
	case c.Four && !c.Eight:
		return fourBits, ".weight.absmax", nil
	case c.Eight && !c.Four:
		return whole(llmInt8), ".SCB", nil
	}
	return nil, "", fmt.Errorf("bitsandbytes: load_in_4bit and load_in_8bit: got %v and %v, want "+
		"one of them", c.Four, c.Eight)
}

// llmInt8 reads a module of LLM.int8: a byte for each number.
func llmInt8(p *parts) (*module, error) {
	m, err := signed(p, "bitsandbytes")
	if err != nil {
		return nil, err
	}
	s, err := p.floats("SCB", m.out)
	if err != nil {
		return nil, err
	}
	p.ignore("weight_format")
	m.groups = 1
	m.scale = func(o, _ int) float32 { return s[o] / 127 }
	return m, m.contiguous(-1)
}

// state is what bitsandbytes says of a weight of 4 bits, in quant_state.
type state struct {
	Type   string  `json:"quant_type"`
	Size   int     `json:"blocksize"`
	DType  string  `json:"dtype"`
	Shape  []int   `json:"shape"`
	Nested int     `json:"nested_blocksize"`
	Offset float32 `json:"nested_offset"`
}

// fourBits reads a module of bitsandbytes with 4 bits (2).
func fourBits(p *parts) (*checkpoint.Weight, error) {
	var s state
	for _, kind := range []string{"nf4", "fp4"} {
		name := "weight.quant_state.bitsandbytes__" + kind
		if !p.has(name) {
			continue
		}
		t, err := p.take(name, 1, tensor.U8)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(t.Data, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if s.Type != kind {
			return nil, fmt.Errorf("%s: quant_type: got %.40q", name, s.Type)
		}
	}
	w := &table{}
	kept := tensor.F32
	switch s.DType {
	case "float16":
		kept = tensor.F16
		w.round = func(x float32) float32 { return tensor.F16ToF32(tensor.F32ToF16(x)) }
	case "bfloat16":
		kept = tensor.BF16
		w.round = func(x float32) float32 {
			return math.Float32frombits(uint32(tensor.F32ToBF16(x)) << 16)
		}
	case "float32":
		w.round = func(x float32) float32 { return x }
	case "":
		return nil, fmt.Errorf("weight.quant_state.bitsandbytes__nf4 or __fp4: missing")
	default:
		return nil, fmt.Errorf("weight.quant_state: dtype: got %.40q, want float16, bfloat16 or "+
			"float32", s.DType)
	}
	q, err := p.take("weight", 2, append(floats, tensor.U8)...) // whatever holds the bytes
	if err != nil {
		return nil, err
	}
	const most = 1 << 30
	if len(s.Shape) != 2 || min(s.Shape[0], s.Shape[1]) < 1 || max(s.Shape[0], s.Shape[1]) > most ||
		(s.Shape[0]*s.Shape[1]+1)/2 != len(q.Data) {
		return nil, fmt.Errorf("weight: got %d bytes for shape %v", len(q.Data), s.Shape)
	}
	if s.Size < 1 {
		return nil, fmt.Errorf("weight.quant_state: blocksize: got %d, want at least 1", s.Size)
	}
	w.q, w.size = q.Data, s.Size
	blocks := (s.Shape[0]*s.Shape[1]-1)/s.Size + 1
	if w.values, err = p.floats("weight.quant_map", 16); err != nil {
		return nil, err
	}
	if w.largest, err = s.largest(p, blocks); err != nil {
		return nil, err
	}
	return &checkpoint.Weight{
		Tensor: tensor.Tensor{DType: kept, Shape: s.Shape},
		Stored: "bitsandbytes " + s.Type, Raw: p.raw, Read: w.read,
	}, nil
}

// largest reads the largest magnitudes of all blocks.
func (s *state) largest(p *parts, blocks int) ([]float32, error) {
	const name = "weight.absmax"
	if !p.has("weight.nested_absmax") {
		return p.floats(name, blocks)
	}
	b, err := p.take(name, 1, tensor.U8)
	if err != nil {
		return nil, err
	}
	if len(b.Data) != blocks || s.Nested < 1 {
		return nil, fmt.Errorf("%s: got %d numbers in blocks of %d, want %d in blocks of at "+
			"least 1", name, len(b.Data), s.Nested, blocks)
	}
	values, err := p.floats("weight.nested_quant_map", 256)
	if err != nil {
		return nil, err
	}
	scales, err := p.floats("weight.nested_absmax", (blocks-1)/s.Nested+1)
	if err != nil {
		return nil, err
	}
	largest := make([]float32, blocks)
	for j, b := range b.Data {
		largest[j] = float32(values[b]*scales[j/s.Nested]) + s.Offset
	}
	return largest, nil
}

// table is a weight of numbers of 4 bits that are indices of a table.
type table struct {
	q       []byte
	values  []float32
	largest []float32 // of each block
	size    int       // of a block
	round   func(float32) float32
}

// read implements [checkpoint.Weight]'s Read (2).
func (w *table) read(dst []float32, at int) error {
	for end := at + len(dst); at < end; {
		var values [16]float32 // of this block
		for i, v := range w.values {
			values[i] = w.round(v * w.largest[at/w.size])
		}
		for stop := min(end, at-at%w.size+w.size); at < stop; at++ {
			dst[len(dst)-end+at] = values[w.q[at/2]>>(4-at%2*4)&15]
		}
	}
	return nil
}

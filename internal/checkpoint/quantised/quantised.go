// Package quantised reads weights that AWQ, GPTQ and compressed-tensors quantised to whole numbers
// of 4 or 8 bits, that bitsandbytes replaced by indices of a table (see bitsandbytes), that
// transformers (fp8) and compressed-tensors (float-quantized) rounded to floating numbers of 8 bits
// (see float8), or that MLX quantised (see [UnpackMLX]). A module's weight [out, in] of whole
// numbers is
//
//	w[o,i] = (q[o,i] − z[o,g(i)])·s[o,g(i)]                                          (1)
//
// with a scale and a zero for each group of inputs. The three differ in their bit layouts:
//
//	                    q                        z                        g(i)
//	AWQ (GEMM)          qweight [in, out/n],     qzeros [groups, out/n],  i / size
//	                    in the order 0 2 4 6 1 3 5 7
//	GPTQ                qweight [in/n, out]      qzeros [groups, out/n],  g_idx[i]
//	                                             less 1 in version 1
//	compressed-tensors  weight_packed [out,      weight_zero_point        i / size, or
//	                    in/n], or bytes in       [out/n, groups], or half weight_g_idx[i]
//	                    weight [out, in]
//
// n numbers of 32/n bits are in one 32-bit word, the lowest bits first, along the axis that is
// divided. Source: AutoAWQ 0.2.7 (packing_utils.py), GPTQModel 7.7, compressed-tensors 0.20.
package quantised

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// settings is a quantization_config. The older files quantize_config.json and quant_config.json use
// other names for some keys.
type settings struct {
	Method  string                                  `json:"quant_method"`
	Bits    int                                     `json:"bits"`
	Size    int                                     `json:"group_size"`
	Format  string                                  `json:"format"`
	Version string                                  `json:"version"`           // AWQ's older format
	Layout  string                                  `json:"checkpoint_format"` // GPTQ's older format
	Backend string                                  `json:"backend"`           // of AWQ
	OldBits int                                     `json:"w_bit"`
	OldSize int                                     `json:"q_group_size"`
	Block   []int                                   `json:"weight_block_size"` // of fp8
	Four    bool                                    `json:"load_in_4bit"`      // of bitsandbytes
	Eight   bool                                    `json:"load_in_8bit"`
	Groups  map[string]struct{ Weights *ctWeights } `json:"config_groups"`
	Turned  struct {
		Groups map[string]struct {
			Apply []struct{ Location string }
		} `json:"config_groups"`
	} `json:"transform_config"` // of compressed-tensors

	less uint32 // is subtracted from GPTQ's zeros before they are stored
}

// ctWeights are the weight settings of compressed-tensors.
type ctWeights struct {
	Bits     int    `json:"num_bits"`
	Type     string `json:"type"`
	Strategy string `json:"strategy"`
	Block    []int  `json:"block_structure"`
}

// Unpack replaces the parts of quantised weights in s by the weights, as described by config, a
// quantization_config. bias reports whether the model has a bias in a module. If it has none, a
// bias of zeros, which GPTQ's tools write, is left out.
func Unpack(s *checkpoint.Store, config []byte, bias func(module string) bool) error {
	var c settings
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("quantization_config: %w", err)
	}
	read, suffix, err := c.reader()
	if err != nil {
		return fmt.Errorf("quantization_config: %w", err)
	}
	var modules []string
	for _, name := range slices.Sorted(maps.Keys(s.Weights)) {
		if module, ok := strings.CutSuffix(name, suffix); ok {
			modules = append(modules, module)
		}
	}
	if len(modules) == 0 {
		return fmt.Errorf("quantization_config: got %s, but no weight is quantised (%q)", c.Method,
			"MODULE"+suffix)
	}
	for _, module := range modules {
		p := &parts{weights: s.Weights, module: module}
		w, err := read(p)
		if err != nil {
			return fmt.Errorf("%q: %w", module, err)
		}
		for _, name := range p.used {
			delete(s.Weights, name)
		}
		if s.Weights[module+".weight"] != nil {
			return fmt.Errorf("%q: got a weight that is quantised and one that is not", module)
		}
		s.Weights[module+".weight"] = w
		if b := s.Weights[module+".bias"]; b != nil && !bias(module) && zeros(b.Data) {
			delete(s.Weights, module+".bias")
		}
	}
	return nil
}

// zeros reports whether all numbers of floating types are +0.
func zeros(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// whole returns the function that reads a weight of whole numbers.
func whole(read func(*parts) (*module, error)) func(*parts) (*checkpoint.Weight, error) {
	return func(p *parts) (*checkpoint.Weight, error) {
		m, err := read(p)
		if err != nil {
			return nil, err
		}
		return m.weight(p.raw), nil
	}
}

// reader returns the function that reads a module with these settings, and the suffix of a tensor
// that tells quantised modules.
func (c *settings) reader() (func(*parts) (*checkpoint.Weight, error), string, error) {
	if c.Method == "" && (c.Four || c.Eight) {
		c.Method = "bitsandbytes" // which files of 2023 do not say
	}
	switch c.Method {
	case "awq":
		format := strings.ToLower(cmp.Or(c.Version, c.Format, "gemm"))
		if c.Backend == "llm-awq" { // which is a format of its own
			format = c.Backend
		}
		if format != "gemm" {
			return nil, "", fmt.Errorf("awq: version or format: got %.40q, want gemm", format)
		}
		if b := max(c.Bits, c.OldBits); b != 4 {
			return nil, "", fmt.Errorf("awq: bits: got %d, want 4", b)
		}
		return whole(c.awq), ".qweight", nil
	case "gptq":
		if c.Bits != 4 && c.Bits != 8 {
			return nil, "", fmt.Errorf("gptq: bits: got %d, want 4 or 8", c.Bits)
		}
		switch format := strings.ToLower(cmp.Or(c.Layout, c.Format, "gptq")); format {
		case "gptq":
			c.less = 1
		case "gptq_v2":
		default:
			return nil, "", fmt.Errorf("gptq: checkpoint_format or format: got %.40q, want gptq "+
				"or gptq_v2", format)
		}
		return whole(c.gptq), ".qweight", nil
	case "bitsandbytes":
		return c.bitsandbytes()
	case "fp8":
		return float8("weight_scale_inv", "activation_scale", c.Block), ".weight_scale_inv", nil
	case "compressed-tensors":
		if err := c.turned(); err != nil {
			return nil, "", err
		}
		read, suffix := c.packed, ".weight_packed"
		switch c.Format {
		case "float-quantized":
			return c.rounded()
		case "int-quantized":
			read, suffix = c.plain, ".weight_scale"
		case "pack-quantized":
		default:
			return nil, "", fmt.Errorf("compressed-tensors: format: got %.40q, want "+
				"pack-quantized, int-quantized or float-quantized", c.Format)
		}
		for _, g := range c.Groups {
			w := g.Weights
			if w == nil || w.Type != "int" || w.Bits != 4 && w.Bits != 8 ||
				w.Strategy != "group" && w.Strategy != "channel" {
				return nil, "", fmt.Errorf(
					"compressed-tensors: weights: got %+v, want int of 4 or 8 bits by group "+
						"or channel", w)
			}
		}
		return whole(read), suffix, nil
	}
	return nil, "", fmt.Errorf(
		"quant_method: got %.40q, which is not supported, want awq, gptq, bitsandbytes, fp8 or "+
			"compressed-tensors", c.Method)
}

// turned returns an error if activations, keys or queries are multiplied by matrices while a model
// of compressed-tensors runs. Matrices that weights were multiplied by are in their values.
func (c *settings) turned() error {
	for _, name := range slices.Sorted(maps.Keys(c.Turned.Groups)) {
		for _, a := range c.Turned.Groups[name].Apply {
			if a.Location != "weight_input" && a.Location != "weight_output" {
				return fmt.Errorf("compressed-tensors: transform_config: %.40q: location: "+
					"got %.40q, want weight_input or weight_output", name, a.Location)
			}
		}
	}
	return nil
}

// parts takes a module's tensors and records which it has.
type parts struct {
	weights map[string]*checkpoint.Weight
	module  string
	used    []string
	raw     [][]byte
}

// has reports whether the module has a tensor.
func (p *parts) has(name string) bool { return p.weights[p.module+"."+name] != nil }

// take returns a tensor that must have one of the given types and the given number of axes.
func (p *parts) take(name string, axes int, types ...tensor.DType) (*tensor.Tensor, error) {
	full := p.module + "." + name
	w := p.weights[full]
	switch {
	case w == nil:
		return nil, fmt.Errorf("%s: missing", name)
	case !slices.Contains(types, w.DType) || w.Data == nil || len(w.Shape) != axes:
		return nil, fmt.Errorf("%s: got %v, want %d axes of %v", name, &w.Tensor, axes, types)
	}
	p.used = append(p.used, full)
	p.raw = append(p.raw, w.Data)
	return &w.Tensor, nil
}

// ignore leaves out parts, if they are there, that say how activations are rounded, which they are
// not here.
func (p *parts) ignore(names ...string) {
	for _, name := range names {
		p.used = append(p.used, p.module+"."+name)
	}
}

// floats returns the values of a tensor of one axis, n floating numbers.
func (p *parts) floats(name string, n int) ([]float32, error) {
	t, err := p.take(name, 1, floats...)
	if err != nil {
		return nil, err
	}
	if t.Shape[0] != n {
		return nil, fmt.Errorf("%s: got %d numbers, want %d", name, t.Shape[0], n)
	}
	return t.Float32s()
}

// ints returns a tensor of 32-bit words.
func (p *parts) ints(name string, axes int) (*words, error) {
	t, err := p.take(name, axes, tensor.I32)
	if err != nil {
		return nil, err
	}
	w := &words{data: t.Data, rows: 1, cols: 1}
	if axes == 2 {
		w.rows = t.Shape[0]
	}
	w.cols = t.Shape[axes-1]
	return w, nil
}

// words is a matrix of 32-bit words.
type words struct {
	data       []byte
	rows, cols int
}

func (w *words) at(row, col int) uint32 {
	return binary.LittleEndian.Uint32(w.data[4*(row*w.cols+col):])
}

// unset reports whether a number is -1: compressed-tensors then ignores all of them.
func (w *words) unset() bool {
	for col := range w.cols {
		if w.at(0, col) == math.MaxUint32 {
			return true
		}
	}
	return false
}

// check checks the shape.
func (w *words) check(name string, rows, cols int) error {
	if w.rows != rows || w.cols != cols {
		return fmt.Errorf("%s: shape [%d %d], want [%d %d]", name, w.rows, w.cols, rows, cols)
	}
	return nil
}

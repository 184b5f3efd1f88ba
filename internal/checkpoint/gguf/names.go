package gguf

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// decoderNames are the names in the file of every decoder and Hugging Face's names, block by block.
// N is a block's number.
var decoderNames = [][2]string{
	{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"},
	{"blk.N.attn_norm", "model.layers.N.input_layernorm"},
	{"blk.N.ffn_norm", "model.layers.N.post_attention_layernorm"},
	{"blk.N.attn_q", "model.layers.N.self_attn.q_proj"},
	{"blk.N.attn_k", "model.layers.N.self_attn.k_proj"},
	{"blk.N.attn_v", "model.layers.N.self_attn.v_proj"},
	{"blk.N.attn_output", "model.layers.N.self_attn.o_proj"},
	{"blk.N.ffn_gate", "model.layers.N.mlp.gate_proj"},
	{"blk.N.ffn_up", "model.layers.N.mlp.up_proj"},
	{"blk.N.ffn_down", "model.layers.N.mlp.down_proj"},
}

// blockPattern matches a block's number in a name.
var blockPattern = regexp.MustCompile(`^((?:v\.)?blk)\.(0|[1-9]\d{0,3})\.`)

// rename returns the Hugging Face name of a tensor by a table, which has it whole, or without
// ".weight" or ".bias".
func rename(name string, table [][2]string) (string, bool) {
	number := ""
	if m := blockPattern.FindStringSubmatch(name); m != nil {
		number = m[2]
		name = m[1] + ".N." + name[len(m[0]):]
	}
	numbered := func(to string) string { return strings.Replace(to, ".N.", "."+number+".", 1) }
	for _, r := range table {
		if r[0] == name {
			return numbered(r[1]), true
		}
	}
	dot := strings.LastIndex(name, ".")
	if dot < 0 || name[dot:] != ".weight" && name[dot:] != ".bias" {
		return "", false
	}
	for _, r := range table {
		if r[0] == name[:dot] {
			return numbered(r[1]) + name[dot:], true
		}
	}
	return "", false
}

// weights collects a bundle's weights.
type weights map[string]*checkpoint.Weight

func (w weights) add(name string, x *checkpoint.Weight) error {
	if w[name] != nil {
		return fmt.Errorf("two tensors for %q", name)
	}
	w[name] = x
	return nil
}

// decoder adds the tensors of a decoder's file. A tensor in no table keeps its name, so that the
// code that binds the weights lists it.
func (f *file) decoder(w weights, g *checkpoint.GGUF, sizes object) error {
	table := slices.Concat(g.Names, decoderNames)
	tensors, err := apart(f.tensors, sizes)
	if err != nil {
		return err
	}
	for i := range tensors {
		t := &tensors[i]
		if ofEncoder(t.name) {
			return fmt.Errorf("tensor %.80q: an encoder in the decoder's file of architecture %s: "+
				"%w, want llama.cpp's two files", t.name, f.architecture(), errs.ErrUnsupported)
		}
		name, ok := rename(t.name, table)
		if t.name == pairFactors {
			continue // in the configuration
		}
		if !ok {
			if err := w.add(t.name, t.weight()); err != nil {
				return err
			}
			continue
		}
		x := t.weight()
		switch {
		case g.Offset && isNorm(t.name):
			x = t.lessOne()
		case !g.Permuted:
		case strings.Contains(t.name, ".attn_q."):
			x, err = t.unpermuted(sizes["num_attention_heads"].(int))
		case strings.Contains(t.name, ".attn_k."):
			x, err = t.unpermuted(sizes["num_key_value_heads"].(int))
		}
		if err != nil {
			return err
		}
		if err := w.add(g.Prefix+name, x); err != nil {
			return err
		}
	}
	return nil
}

// apart returns a decoder's tensors with queries, keys and values as tensors of their own, where
// they are the rows of one, as llama.cpp's converter writes them if it is asked to.
func apart(tensors []tensorInfo, sizes object) ([]tensorInfo, error) {
	const joined = ".attn_qkv."
	var out []tensorInfo
	for _, t := range tensors {
		if !strings.HasPrefix(t.name, "blk.") || !strings.Contains(t.name, joined) {
			out = append(out, t)
			continue
		}
		head, at := sizes["head_dim"].(int), 0
		q, kv := head*sizes["num_attention_heads"].(int), head*sizes["num_key_value_heads"].(int)
		if len(t.shape) == 0 || len(t.shape) == 1 && !t.typ.plain || t.shape[0] != q+2*kv {
			return nil, fmt.Errorf("tensor %q: shape %v, want %d rows of queries and twice %d of "+
				"keys and values", t.name, t.shape, q, kv)
		}
		row := len(t.data) / t.shape[0]
		for _, part := range []struct {
			name string
			rows int
		}{{".attn_q.", q}, {".attn_k.", kv}, {".attn_v.", kv}} {
			x := t
			x.name = strings.Replace(t.name, joined, part.name, 1)
			x.shape = append([]int{part.rows}, t.shape[1:]...)
			x.data = t.data[at*row : (at+part.rows)*row : (at+part.rows)*row]
			out, at = append(out, x), at+part.rows
		}
	}
	return out, nil
}

// unpermuted returns the tensor with its rows in Hugging Face's order. llama.cpp rotates adjacent
// rows, Hugging Face rotates row i of a head with row i + half: stored row 2i is row i, and 2i+1 is
// i + half.
func (t *tensorInfo) unpermuted(heads int) (*checkpoint.Weight, error) {
	rows := t.shape[0]
	if heads < 1 || rows%(2*heads) != 0 {
		return nil, fmt.Errorf("tensor %q: %d rows, want an even number for each of %d heads",
			t.name,
			rows, heads)
	}
	half := rows / heads / 2
	row := t.weight().Len() / rows
	stored := func(r int) int { // of row r
		head, i := r/(2*half), r%(2*half)
		return 2*half*head + 2*(i%half) + i/half
	}
	return t.rearranged(row, stored), nil
}

// isNorm reports whether a tensor called name holds the weights of a decoder's or a projector's
// norm.
func isNorm(name string) bool { return strings.HasSuffix(name, "_norm.weight") }

// lessOne returns the tensor with 1 subtracted from each value. The result is exact: the file's
// values are rounded sums with 1.
func (t *tensorInfo) lessOne() *checkpoint.Weight {
	x := t.weight()
	out := &checkpoint.Weight{Tensor: tensor.Tensor{DType: tensor.F32, Shape: x.Shape},
		Stored: t.typ.name, Raw: [][]byte{t.data}}
	out.Read = func(dst []float32, at int) error {
		err := x.Floats(dst, at)
		for i := range dst {
			dst[i]--
		}
		return err
	}
	return out
}

// rearranged returns the tensor with rows of row values in another order: row r is the stored row
// stored(r).
func (t *tensorInfo) rearranged(row int, stored func(r int) int) *checkpoint.Weight {
	x := t.weight()
	out := &checkpoint.Weight{Tensor: tensor.Tensor{DType: x.DType, Shape: x.Shape},
		Stored: t.typ.name, Raw: [][]byte{t.data}}
	out.Read = func(dst []float32, at int) error {
		for i := 0; i < len(dst); i += row {
			if err := x.Floats(dst[i:i+row], stored((at+i)/row)*row); err != nil {
				return err
			}
		}
		return nil
	}
	if x.Blocks != nil {
		out.Blocks = func(scales, minima []float32, q []uint8, r int) error {
			return x.Blocks(scales, minima, q, stored(r))
		}
	}
	return out
}

// tower adds the tensors of a projector file of an encoder with that many heads. If names has
// queries, keys and values as one tensor, they become one, and so do the two moments of a patch
// embedding. Tensors in g.Unread are left out.
func (f *file) tower(w weights, names [][2]string, g *checkpoint.GGUF, heads int) error {
	byName := map[string]*tensorInfo{}
	for i := range f.tensors {
		byName[f.tensors[i].name] = &f.tensors[i]
	}
	_, stack := rename("v.blk.0.attn_qkv.weight", names)
	rest := strings.NewReplacer()
	if f.swapped() {
		rest = strings.NewReplacer(".ffn_down.", ".ffn_up.", ".ffn_up.", ".ffn_down.")
	}
	queries := strings.NewReplacer(".attn_k.", ".attn_q.", ".attn_v.", ".attn_q.")
	for i := range f.tensors {
		t := &f.tensors[i]
		x, name := t.weight(), rest.Replace(t.name)
		var err error
		switch {
		case slices.Contains(g.Unread, name):
			continue
		case g.Offset && isNorm(name):
			x = t.lessOne()
		case g.PermutedTower && !f.joined && (strings.Contains(name, ".attn_q.") ||
			strings.Contains(name, ".attn_k.")):
			x, err = t.unpermuted(heads)
		case stack && queries.Replace(name) != name:
			if byName[queries.Replace(name)] != nil {
				continue // part of the same tensor as attn_q
			}
		case stack && strings.Contains(name, ".attn_q."):
			parts := []*tensorInfo{t, byName[strings.Replace(name, ".attn_q.", ".attn_k.", 1)],
				byName[strings.Replace(name, ".attn_q.", ".attn_v.", 1)]}
			x, err = stacked(parts)
			name = strings.Replace(name, ".attn_q.", ".attn_qkv.", 1)
		case name == secondMoment:
			continue // added with the first
		case name+".1" == secondMoment && byName[secondMoment] != nil:
			x, err = interleaved(t, byName[secondMoment])
		}
		if err != nil {
			return err
		}
		to, ok := rename(name, names)
		if !ok {
			to = t.name
		}
		if err := w.add(to, x); err != nil {
			return err
		}
	}
	return nil
}

// secondMoment is the patch embedding of the second of two moments.
const secondMoment = "v.patch_embd.weight.1"

// swapped reports whether the file calls the first layer of the blocks' MLPs ffn_down, as the older
// converter does for MLPs without a gate: that layer then has rows of the encoder's width.
func (f *file) swapped() bool {
	hidden, swapped := f.Number("clip.vision.embedding_length", 0), false
	for _, t := range f.tensors {
		switch {
		case !strings.HasPrefix(t.name, "v.blk."):
		case strings.HasSuffix(t.name, ".ffn_gate.weight"):
			return false
		case strings.HasSuffix(t.name, ".ffn_down.weight") && !swapped:
			swapped = len(t.shape) == 2 && t.shape[1] == hidden
		}
	}
	return swapped
}

// alike checks that tensors exist and have one shape.
func alike(parts []*tensorInfo) error {
	for _, p := range parts[1:] {
		if p == nil {
			return fmt.Errorf("tensor %q: one of %d that belong together is missing", parts[0].name,
				len(parts))
		}
		if !slices.Equal(p.shape, parts[0].shape) {
			return fmt.Errorf("tensor %q: shape %v, want %v as %q", p.name, p.shape,
				parts[0].shape, parts[0].name)
		}
	}
	return nil
}

// stacked concatenates tensors along their rows.
func stacked(parts []*tensorInfo) (*checkpoint.Weight, error) {
	if err := alike(parts); err != nil {
		return nil, err
	}
	first := parts[0]
	each := first.weight().Len()
	shape := append([]int{len(parts) * first.shape[0]}, first.shape[1:]...)
	out, mixed := joined(parts, shape, func(dst []float32, at int, read []reader) error {
		for len(dst) > 0 {
			p, from := at/each, at%each
			n := min(len(dst), each-from)
			if err := read[p](dst[:n], from); err != nil {
				return err
			}
			dst, at = dst[n:], at+n
		}
		return nil
	})
	if first.weight().Blocks != nil && !mixed {
		rows := first.shape[0]
		out.Blocks = func(scales, minima []float32, q []uint8, row int) error {
			return parts[row/rows].blocks(scales, minima, q, row%rows)
		}
	}
	return out, nil
}

// interleaved makes [out, 3, 2, patch, patch] from the two moments' [out, 3, patch, patch].
func interleaved(parts ...*tensorInfo) (*checkpoint.Weight, error) {
	if err := alike(parts); err != nil {
		return nil, err
	}
	t := parts[0]
	if len(t.shape) != 4 {
		return nil, fmt.Errorf("tensor %q: shape %v, want [rows channels patch patch]", t.name,
			t.shape)
	}
	plane := t.shape[2] * t.shape[3]
	shape := []int{t.shape[0], t.shape[1], len(parts), t.shape[2], t.shape[3]}
	out, _ := joined(parts, shape, func(dst []float32, at int, read []reader) error {
		for len(dst) > 0 {
			p, from := at/plane, at%plane
			n := min(len(dst), plane-from)
			if err := read[p%len(parts)](dst[:n], p/len(parts)*plane+from); err != nil {
				return err
			}
			dst, at = dst[n:], at+n
		}
		return nil
	})
	return out, nil
}

// reader is the type of a checkpoint.Weight's Read.
type reader func(dst []float32, at int) error

// joined returns a weight that is read from several tensors. If their types differ, it is kept in
// float32, or in q8 if all are quantised.
func joined(parts []*tensorInfo, shape []int,
	read func(dst []float32, at int, parts []reader) error) (out *checkpoint.Weight, mixed bool) {
	var readers []reader
	var names []string
	out = &checkpoint.Weight{}
	out.Shape, out.DType = shape, tensor.Q8
	for _, p := range parts {
		readers, out.Raw = append(readers, p.weight().Floats), append(out.Raw, p.data)
		if !slices.Contains(names, p.typ.name) {
			names = append(names, p.typ.name)
		}
		if p.typ.plain {
			out.DType = tensor.F32
		}
	}
	if mixed = len(names) > 1; !mixed {
		out.DType = parts[0].weight().DType
	}
	out.Stored = strings.Join(names, "+")
	out.Read = func(dst []float32, at int) error { return read(dst, at, readers) }
	return out, mixed
}

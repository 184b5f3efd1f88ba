package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
)

// ofEncoder reports whether a tensor called name belongs to an encoder or a projector.
func ofEncoder(name string) bool {
	return strings.HasPrefix(name, "v.") || strings.HasPrefix(name, "mm.")
}

// separate returns a file that Ollama wrote as llama.cpp's two: the decoder's, and the encoder's
// with the projector, nil if f has no encoder. Of every other file it returns f alone.
func (f *file) separate(families checkpoint.Families) (d, p *file, err error) {
	arch := f.architecture()
	i := slices.IndexFunc(families, func(x *checkpoint.Family) bool {
		return x.GGUF != nil && x.GGUF.Joined != nil && x.GGUF.Joined.Architecture == arch
	})
	if i < 0 {
		return f, nil, nil
	}
	g := families[i].GGUF
	j := g.Joined
	encoder := slices.ContainsFunc(f.tensors, func(t tensorInfo) bool { return ofEncoder(t.name) })
	own := slices.ContainsFunc(j.Keys, func(k [2]string) bool { return f.has(arch + "." + k[0]) })
	if !encoder && !own && slices.Contains(g.Decoders, arch) {
		return f, nil, nil
	}
	values, names, err := j.More(f)
	if err == nil {
		err = f.wrong
	}
	if err != nil {
		return nil, nil, err
	}
	part := func() *file { return &file{keys: map[string]value{}, joined: true} }
	d, p = part(), part()
	if !slices.Contains(g.Decoders, arch) {
		arch = g.Decoders[0]
	}
	for key, v := range f.keys {
		d.keys[key] = v
		rest, ok := strings.CutPrefix(key, j.Architecture+".")
		if !ok {
			continue
		}
		if i := slices.IndexFunc(j.Keys, func(k [2]string) bool { return k[0] == rest }); i >= 0 {
			rest = j.Keys[i][1]
		} else if strings.HasPrefix(rest, "vision.") {
			rest = "clip." + rest
		}
		if delete(d.keys, key); strings.HasPrefix(rest, "clip.") {
			p.keys[rest] = v
		} else {
			d.keys[arch+"."+rest] = v
		}
	}
	values["general.architecture"], values["clip.projector_type"] = arch, g.Projector
	for key, x := range values {
		if strings.HasPrefix(key, "clip.") {
			p.keys[key] = valueOf(x)
		} else {
			d.keys[key] = valueOf(x)
		}
	}
	p.keys["general.architecture"] = valueOf(archClip)
	names = append(names, j.Names...)
	for _, t := range f.tensors {
		if !ofEncoder(t.name) {
			d.tensors = append(d.tensors, t)
			continue
		}
		if to, ok := rename(t.name, names); ok {
			t.name = to
		}
		p.tensors = append(p.tensors, t)
	}
	d.cutTokens()
	if !encoder {
		return d, nil, nil
	}
	p.completeSizes()
	return d, p, nil
}

// cutTokens leaves out tokens without a row in the embedding: Ollama keeps the tokens of
// pictures in vocabularies of models that take none.
func (f *file) cutTokens() {
	table := f.Shape("token_embd.weight")
	for _, key := range []string{"tokens", "scores", "token_type"} {
		key = "tokenizer.ggml." + key
		if v, ok := f.keys[key]; ok && v.typ == typeArray && len(table) == 2 {
			v.count = min(v.count, table[0])
			f.keys[key] = v
		}
	}
}

// completeSizes adds sizes of an encoder that only the shapes of its tensors tell.
func (f *file) completeSizes() {
	const width, colours = "clip.vision.feed_forward_length", 3
	if up := f.Shape("v.blk.0.ffn_up.weight"); !f.has(width) && len(up) == 2 {
		f.keys[width] = valueOf(up[0])
	}
	for i := range f.tensors {
		t := &f.tensors[i]
		if s := t.shape; t.name+".1" == secondMoment && len(s) == 4 && s[1] == 2 &&
			s[0]%colours == 0 { // GGUF has no five axes
			t.shape = []int{s[0] / colours, colours, s[1], s[2], s[3]}
		}
	}
}

// valueOf returns x as the value of a key.
func valueOf(x any) value {
	v := value{count: 1}
	switch x := x.(type) {
	case string:
		v.typ = typeString
		v.data = append(binary.LittleEndian.AppendUint64(nil, uint64(len(x))), x...)
	case bool:
		v.typ, v.data = typeBool, []byte{0}
		if x {
			v.data[0] = 1
		}
	case int:
		v.typ, v.data = typeInt64, binary.LittleEndian.AppendUint64(nil, uint64(x))
	case float64:
		v.typ = typeFloat64
		v.data = binary.LittleEndian.AppendUint64(nil, math.Float64bits(x))
	case []float64:
		v = listValue(typeFloat64, x)
	case []int:
		v = listValue(typeInt64, x)
	case []bool:
		v = listValue(typeBool, x)
	default:
		panic(fmt.Sprintf("gguf: a value of type %T", x))
	}
	return v
}

// listValue returns the value of an array.
func listValue[T any](elem valueType, list []T) value {
	v := value{typ: typeArray, elem: elem, count: len(list)}
	for _, x := range list {
		v.data = append(v.data, valueOf(x).data...)
	}
	return v
}

package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Form is one naming of a family's weights in files: every name begins with the left side of one
// rule, and the rule's right side replaces it. The result is the canonical name. N in a rule is a
// block's number.
type Form struct {
	Name  string
	By    string // program that writes it
	Rules [][2]string
}

// Loaded are the releases of transformers that write the names of the hub's repositories.
const Loaded = "transformers to 4.51, 4.52.4 to 5.2, 5.6 on"

// Modules of classes of transformers that several families share. Rules list a CLIP tower's own
// modules, and SigLIP's head, so that no rule for a tower without "vision_model." matches a name
// with it.
var (
	TextModules = []string{"embed_tokens.", "layers.", "norm.", "rotary_emb."}
	CLIPModules = []string{
		"embeddings.", "encoder.", "pre_layrnorm.", "post_layernorm.", "head.",
	}
)

// Renamed returns rules for modules that follow the prefix from in files and the prefix to in
// canonical names.
func Renamed(from, to string, modules ...string) (rules [][2]string) {
	for _, m := range modules {
		rules = append(rules, [2]string{from + m, to + m})
	}
	return rules
}

// NewForm is the form of models whose decoder's names begin with text, and its head's with head (""
// if the files have none); their canonical names begin with decoder. rest are the other parts'
// rules.
func NewForm(name, by, decoder, text, head string, rest ...[2]string) Form {
	rules := append(Renamed(text, decoder+"model.", TextModules...), rest...)
	if head != "" {
		rules = append(rules, [2]string{head, decoder + "lm_head."})
	}
	return Form{Name: name, By: by, Rules: rules}
}

// CLIPNames are llama.cpp's names of the weights of CLIP and SigLIP towers, for [GGUF.Names]. tower
// is the prefix of the canonical names.
func CLIPNames(tower string) [][2]string {
	layer := tower + "encoder.layers.N."
	return [][2]string{
		{"v.class_embd", tower + "embeddings.class_embedding"},
		{"v.patch_embd", tower + "embeddings.patch_embedding"},
		{"v.position_embd", tower + "embeddings.position_embedding"},
		{"v.pre_ln", tower + "pre_layrnorm"}, {"v.post_ln", tower + "post_layernorm"},
		{"v.blk.N.attn_q", layer + "self_attn.q_proj"},
		{"v.blk.N.attn_k", layer + "self_attn.k_proj"},
		{"v.blk.N.attn_v", layer + "self_attn.v_proj"},
		{"v.blk.N.attn_out", layer + "self_attn.out_proj"},
		{"v.blk.N.ln1", layer + "layer_norm1"}, {"v.blk.N.ln2", layer + "layer_norm2"},
		{"v.blk.N.ffn_up", layer + "mlp.fc1"}, {"v.blk.N.ffn_down", layer + "mlp.fc2"},
	}
}

// replaced returns name with side from, with which it must begin, replaced by side to of a rule.
func replaced(name, from, to string) (string, bool) {
	before, after, numbered := strings.Cut(from, ".N.")
	if !numbered {
		rest, ok := strings.CutPrefix(name, from)
		return to + rest, ok
	}
	rest, ok := strings.CutPrefix(name, before+".")
	number, rest, dotted := strings.Cut(rest, ".")
	rest, follows := strings.CutPrefix(rest, after)
	ok = ok && dotted && follows && number != "" && strings.Trim(number, "0123456789") == ""
	return strings.Replace(to, ".N.", "."+number+".", 1) + rest, ok
}

// canonical returns the canonical name of a name of form f.
func (f *Form) canonical(name string) (string, bool) {
	for _, r := range f.Rules {
		if to, ok := replaced(name, r[0], r[1]); ok {
			return to, true
		}
	}
	return name, false
}

// file returns the name of form f of a canonical name.
func (f *Form) file(name string) string {
	for _, r := range f.Rules {
		if to, ok := replaced(name, r[1], r[0]); ok {
			return to
		}
	}
	return name
}

// Named returns b with its weights under their names in files of form f.
func (f *Form) Named(b Bundle) *Store {
	s := &Store{What: *b.About(), Docs: *b.Parts(), Weights: map[string]*Weight{}}
	for _, name := range b.Names() {
		s.Weights[f.file(name)], _ = b.Tensor(name)
	}
	s.Seal()
	return s
}

// strangers are parts of names that belong to no model. Other programs that load such a file would
// run with random weights instead.
var strangers = []struct{ part, why string }{
	{"lora_A.", "an adapter that is not merged (merge_and_unload, then save)"},
	{"base_layer.", "an adapter that is not merged (merge_and_unload, then save)"},
	{"base_model.model.", "a peft model: merge its adapter (merge_and_unload, then save)"},
	{"_orig_mod.", "a compiled model: save the model within it"},
	{"module.", "a DataParallel model: save the model within it"},
}

// Rename gives s's weights their canonical names, by the form of table that matches most names; of
// equal matches, the first. Names of no form stay unchanged. Buffers are removed. It records in
// s.What which program wrote the names.
func (s *Store) Rename(table []Form) error {
	maps.DeleteFunc(s.Weights, func(name string, _ *Weight) bool { return IsBuffer(name) })
	names := slices.Sorted(maps.Keys(s.Weights))
	best, fits := 0, -1
	for i := range table {
		n := 0
		for _, name := range names {
			if _, ok := table[i].canonical(name); ok {
				n++
			}
		}
		if n > fits {
			best, fits = i, n
		}
	}
	f := &table[best]
	weights := make(map[string]*Weight, len(names))
	for _, name := range names {
		to, _ := f.canonical(name)
		if weights[to] != nil {
			return fmt.Errorf("weights: two tensors are %q, one of them called %q", to, name)
		}
		weights[to] = s.Weights[name]
	}
	s.Weights = weights
	s.What.Names = fmt.Sprintf("names of %s (%s)", f.By, f.Name)
	if fits < len(names) {
		s.What.Names = fmt.Sprintf(
			"%d of %d names match no known form; the closest form has names of %s (%s)",
			len(names)-fits, len(names), f.By, f.Name)
	}
	for _, x := range strangers {
		if i := slices.IndexFunc(names, func(n string) bool {
			return strings.Contains("."+n, "."+x.part)
		}); i >= 0 {
			s.What.Names = fmt.Sprintf("%q is of %s; %s", names[i], x.why, s.What.Names)
			break
		}
	}
	return nil
}

package model

import (
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Stored is the Encoder of a Plan that keeps the types of the files.
const Stored = "stored"

// bigTower is the width from which a vision tower is big. CLIP ViT-L has 1024: 0.4 teraflop for a
// picture of 336 pixels, seconds on a few cores. A tower of half that width takes a quarter of the
// time, and a small model loses more by rounding.
const bigTower = 1024

// EncoderDefault returns the type for the weights of a vision tower and its projector if nobody
// names one, and why, if it is not Stored. width is the tower's. stored is false for random weights
// of a benchmark, which may as well be made in a fast type.
func EncoderDefault(f nn.Features, width int, stored bool) (name, why string) {
	switch {
	case width >= bigTower && f.VNNI:
		return "q8", "this processor multiplies 8-bit integers (VNNI)"
	case width >= bigTower && f.Words && !f.BF16:
		return "q12", "this processor multiplies 16-bit integers faster than numbers of 32 bits"
	case stored:
		return Stored, ""
	case f.BF16:
		return "bf16", "this processor multiplies bfloat16"
	}
	return "f16", "files are usually published in it"
}

// Tower tells the width of the vision tower that is bound next, before any of its weights. It
// completes the source's plan, and returns the tower's attention.
func (b *Binder) Tower(width, heads int) nn.Attention {
	s := b.ck
	s.tower = true
	if s.Plan.Encoder == "" && s.About().Packed == nil {
		s.Plan.Encoder, s.why = EncoderDefault(s.Features, width, true)
		s.Plan.chosen = s.why != ""
	}
	name, _ := s.Encoder()
	return b.Attention(nn.Attention{
		Heads: heads, KVHeads: heads, HeadDim: width / heads, Rounding: TowerRounding(name),
	})
}

// Attention returns a, whose work the source counts.
func (b *Binder) Attention(a nn.Attention) nn.Attention {
	a.Work = b.ck.Work
	return a
}

// TowerRounding returns how far the attention of a vision tower may round what it multiplies: as
// far as products with weights of the tower's type round activations.
func TowerRounding(encoder string) nn.Rounding {
	switch encoder {
	case "q8":
		return nn.RoundBytes
	case "q12":
		return nn.RoundWords
	case "bf16":
		return nn.RoundPairs
	}
	return nn.Exact
}

// Encoder returns the type of the bound vision tower's and projector's weights, Stored if it is the
// files', and why the program chose it, "" if it did not. Without a tower, the type is "".
func (s *Source) Encoder() (name, why string) {
	if !s.tower {
		return "", ""
	}
	name = s.Plan.Encoder
	if p := s.About().Packed; p != nil {
		name = p.EncoderQuant
	}
	if name == "" {
		name = Stored
	}
	return name, s.why
}

// number reports whether weights of type d are plain numbers, not blocks.
func number(d tensor.DType) bool {
	return d == tensor.F32 || d == tensor.F16 || d == tensor.BF16
}

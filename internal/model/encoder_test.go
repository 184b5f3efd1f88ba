package model

import (
	"testing"

	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that the encoder's type depends on the processor and the tower's width as documented.
func TestEncoderDefault(t *testing.T) {
	for _, c := range []struct {
		cpu            string
		f              nn.Features
		width          int
		stored, random string
	}{
		{"Cascade Lake, Ice Lake: AVX-512 with VNNI", nn.Features{VNNI: true}, 1024, "q8", "q8"},
		{"Alder Lake: AVX-VNNI, Qwen2.5-VL's tower", nn.Features{VNNI: true}, 1280, "q8", "q8"},
		{"a narrow tower", nn.Features{VNNI: true}, 1023, "stored", "f16"},
		{"Zen 4, Zen 5, Sapphire Rapids", nn.Features{VNNI: true, BF16: true}, 1024, "q8", "q8"},
		{"a narrow tower there", nn.Features{VNNI: true, BF16: true}, 128, "stored", "bf16"},
		{"Zen 3, Haswell: AVX2", nn.Features{Words: true}, 1024, "q12", "q12"},
		{"a narrow tower there", nn.Features{Words: true}, 1023, "stored", "f16"},
		{"arm64, AVX-512 alone: neither", nn.Features{}, 1024, "stored", "f16"},
		{"BF16 alone", nn.Features{BF16: true}, 1280, "stored", "bf16"},
	} {
		got, why := EncoderDefault(c.f, c.width, true)
		if got != c.stored || (why == "") != (got == Stored) {
			t.Errorf("%s, width %d: %q (%q), want %q", c.cpu, c.width, got, why, c.stored)
		}
		if got, why := EncoderDefault(c.f, c.width, false); got != c.random || why == "" {
			t.Errorf("%s, width %d, random: %q (%q), want %q", c.cpu, c.width, got, why, c.random)
		}
	}
}

// Ensure that a chosen type is for plain numbers of the encoder alone, and a named one for all.
func TestChosenEncoder(t *testing.T) {
	for d, want := range map[tensor.DType]tensor.DType{
		tensor.F32: tensor.Q8, tensor.F16: tensor.Q8, tensor.BF16: tensor.Q8, tensor.Q4: tensor.Q4,
		tensor.Q4M: tensor.Q4M, tensor.IQ4: tensor.IQ4, tensor.Q8: tensor.Q8,
	} {
		p := Plan{Encoder: "q8", chosen: true}
		if got := p.keep(encoder, d); got != want {
			t.Errorf("chosen q8 for %v: %v, want %v", d, got, want)
		}
		if got := p.keep(decoder, d); got != d {
			t.Errorf("the decoder's %v becomes %v", d, got)
		}
		if got := (Plan{Encoder: "q8"}).keep(encoder, d); got != tensor.Q8 {
			t.Errorf("q8 for %v: %v", d, got)
		}
		if got := (Plan{Encoder: Stored}).keep(encoder, d); got != d {
			t.Errorf("%v as stored: %v", d, got)
		}
	}
}

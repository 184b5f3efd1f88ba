package engine_test

import (
	"testing"
)

// idefics3Prompts have one picture in tiles, one among text that looks like control tokens, two
// pictures in two turns after a system message, and none.
var idefics3Prompts = map[string][]string{
	"idefics3-tiny": {"odd", "wide", "two-images", "text-only"},
	"smolvlm-tiny":  {"odd", "two-images"},
}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same.
func TestIdefics3Stages(t *testing.T) {
	for name, prompts := range idefics3Prompts {
		e := open(t, "testdata/"+name, 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkPrompt(t, e, reference(t, name, prompt))
			})
		}
	}
}

// Ensure that pixel values equal transformers'.
func TestIdefics3Pixels(t *testing.T) { checkPixels(t, idefics3Prompts) }

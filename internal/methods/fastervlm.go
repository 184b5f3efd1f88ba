package methods

// FasterVLM: "[CLS] Attention is All You Need for Training-Free Visual Token Pruning: Make VLM
// Inference Faster" (arXiv:2412.01818, version 1).

import "github.com/restore-vlm/restore/reduce"

var fasterVLMMethod = &method{
	Method: reduce.Method{
		Name:    "fastervlm",
		Title:   "FasterVLM: tokens of highest class-token attention",
		Summary: "Keeps the patches that stand out most.",
		Paper:   "https://arxiv.org/abs/2412.01818v1",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.ClsAttn},
		Minimum: "1 token",
		PerView: true,
		Cost:    "none",
		Notes: reduce.Notes{
			Equations: `
The k tokens of highest class-token attention in the layer of the features, mean over heads.`,
			Departures: `
None with a class token. Without one: the attention that tokens receive in the last block (ours).
The authors' budgets are per view; here the views share the budget equally. RESTORE over it is
RESTORE over VisionZip, which keeps the same list. VisPruner is the paper's later version.`,
			Licence: "The authors' code: Apache-2.0.",
		},
	},
	raster: true,
	ops:    noOps,
	pick: func(w *work, k int) (*selection, error) {
		a := meanAttention(w.in)
		return &selection{
			kept: topK(a, k), scores: map[string][]float32{"attention": float32s(a)},
		}, nil
	},
}

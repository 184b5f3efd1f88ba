package qwen25vl

import (
	"slices"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// VisionConfig holds the encoder's sizes.
type VisionConfig struct {
	cells.Tower
	Window int // pixels along a window's side
	Full   []int
	Rate   int // positions of time per second
}

// parseVision reads a vision_config object. Absent keys take the defaults of
// transformers' Qwen2_5_VLVisionConfig.
func parseVision(v *model.Values) VisionConfig {
	c := VisionConfig{Tower: cells.Tower{
		Hidden: v.Int("hidden_size", -1, 1, 1<<16),
		Heads:  v.Int("num_heads", 16, 1, 1<<10),
		Layers: v.Int("depth", 32, 1, 1<<10),
		MLP:    v.Int("intermediate_size", 3420, 1, 1<<18),
		Out:    v.Int("out_hidden_size", 3584, 1, 1<<16),
		Patch:  v.Int("patch_size", 14, 1, 512),
		Frames: v.Int("temporal_patch_size", 2, 1, 16),
		Merge:  v.Int("spatial_merge_size", 2, 1, 16),
		Theta:  cells.Theta(v),
	}}
	c.Window = v.Int("window_size", 112, 1, 1<<16)
	c.Rate = v.Int("tokens_per_second", 4, 1, 1<<10)
	v.String("hidden_act", "silu", llama.SiLU...)
	v.Unsupported(map[string]string{"in_chans": "3", "in_channels": "3"})
	c.CheckHeads(v, "num_heads", "hidden_size")
	if cell := c.Merge * c.Patch; c.Window%cell != 0 {
		v.Fail("window_size", "got %d, want a multiple of %d (spatial_merge_size * patch_size)",
			c.Window, cell)
	}
	c.Full = v.Ints("fullatt_block_indexes", []int{7, 15, 23, 31})
	if len(c.Full) == 0 {
		v.Fail("fullatt_block_indexes", "got an empty list, want one block at least")
	}
	for _, i := range c.Full {
		if i < 0 || i >= c.Layers {
			v.Fail("fullatt_block_indexes", "got %d, want 0 to %d (depth %d)", i, c.Layers-1,
				c.Layers)
		}
	}
	return c
}

// side returns the number of cells along a window's side.
func (c *VisionConfig) side() int { return c.Window / c.Merge / c.Patch }

// wholes returns the layers that see the whole picture, ascending; nil: all.
func (c *VisionConfig) wholes() []int {
	full := slices.Compact(slices.Sorted(slices.Values(c.Full)))
	if len(full) == c.Layers {
		return nil
	}
	return full
}

var names = cells.Names{
	Up: "mlp.up_proj", Down: "mlp.down_proj", Gate: "mlp.gate_proj",
	Merger: cells.MergerNames{Norm: "ln_q", Up: "mlp.0", Down: "mlp.2"},
}

// encoder binds the tower's weights under b.
func (c *VisionConfig) encoder(b *model.Binder) *cells.Encoder {
	e := cells.NewEncoder(b, c.Tower, names)
	e.Gated = nn.SwiGLU
	for i := range e.Blocks {
		e.Blocks[i].Windowed = !slices.Contains(c.Full, i)
	}
	e.Windows = &cells.Windows{
		Patches: c.side() * c.side() * c.Cell(),
		Cut: func(parts []cells.Part) (order, bounds []int32) {
			return windows(parts, c.Merge, c.side())
		},
	}
	e.Enter = func(r *model.Run, x []float32, lay *cells.Layout) {
		if r.Trace != nil {
			r.Trace("vision.block_in", []int{len(x) / e.Hidden, e.Hidden}, x)
			traceOrder(r, e, lay)
		}
	}
	return e
}

// traceOrder traces windows, and angles in both orders.
func traceOrder(r *model.Run, e *cells.Encoder, lay *cells.Layout) {
	order, bounds := e.Windows.Cut(lay.Parts)
	for name, v := range map[string][]int32{
		"window_index": order, "reverse_index": lay.Place, "cu_window_seqlens_raw": bounds,
		"cu_window_seqlens": slices.Compact(slices.Clone(bounds)),
	} {
		r.TraceInts("vision."+name, []int{len(v)}, v)
	}
	var raster []nn.Pos
	for i := range lay.Parts {
		raster = append(raster, lay.Parts[i].Positions(e.Merge)...)
	}
	shape := []int{len(raster), e.Attn.HeadDim / 2}
	r.Trace("vision.rope_freqs", shape, e.RoPE.Angles(raster))
	r.Trace("vision.rope_freqs_window_order", shape, e.RoPE.Angles(lay.Pos))
}

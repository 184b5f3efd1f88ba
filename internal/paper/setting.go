package paper

import (
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/seam"
)

// Setting is a reduction as the paper describes it.
type Setting struct {
	Base    string         // "" reads every token
	NVis    int            // for the paper's model; 0 if only Share is known
	Share   float64        // 0: NVis of LLaVA-1.5's tokens
	Plain   bool           // without RESTORE
	Options map[string]any // other parameters by name
}

// full reads every token.
var full = Setting{}

// bases maps the paper's names of methods to ours.
var bases = map[string]string{
	"FastV": "fastv", "PDrop": "pdrop", "SparseVLM": "sparsevlm", "ToMe": "tome",
	"VisionZip": "visionzip", "Visionzip": "visionzip", "DivPrune": "divprune",
	"VisPruner": "vispruner", "HoloV": "holov", "FlowCut": "flowcut",
}

// llava15 is the model of the paper's ablations.
const llava15 = "LLaVA-1.5-7B"

// modelTokens are the visual tokens of a picture in the paper's models.
var modelTokens = map[string]int{llava15: 576, "LLaVA-NeXT-7B": 2880}

// reduction converts the setting for a model with that many visual tokens per picture, 0 if it
// depends on the picture; nil is no reduction. It keeps the share of the paper's model. The paper's
// baselines outside of the decoder renumber positions, ours do not by default; and it has no
// covered anchors, which are our default below a ninth of the tokens.
func (s Setting) reduction(tokens int) (*restore.Reduction, error) {
	if s.Base == "" {
		return nil, nil
	}
	r := &restore.Reduction{Base: s.Base, Plain: s.Plain, Options: map[string]any{}}
	maps.Copy(r.Options, s.Options)
	share := s.Share
	if share == 0 {
		share = float64(s.NVis) / float64(modelTokens[llava15])
	}
	if tokens == 0 {
		r.KeepRatio = share
	} else {
		r.NVis = max(1, int(math.Round(share*float64(tokens))))
	}
	few, merges := tokens == 0 || 9*r.NVis < tokens, !s.Plain && s.Options["gamma"] != 1.
	if few && merges && s.Options["anchors"] == nil {
		r.Options["anchors"] = "released"
	}
	o, err := seam.Reduction(r)
	if err == nil && s.Plain && !o.Inside() && o.Positions == "" {
		r.Options["positions"] = "sequential"
	}
	return r, err
}

// key is equal for equal settings.
func (s Setting) key() string {
	return fmt.Sprint(s.Base, s.NVis, s.Share, s.Plain, s.Options) // fmt sorts the keys of maps
}

// String describes the setting.
func (s Setting) String() string {
	if s.Base == "" {
		return "all tokens"
	}
	out := s.Base
	if !s.Plain {
		out += " + RESTORE"
	}
	if s.NVis > 0 {
		out += fmt.Sprintf(", %d tokens", s.NVis)
	} else {
		out += fmt.Sprintf(", %.1f %%", 100*s.Share)
	}
	if len(s.Options) > 0 {
		out += " " + strings.Trim(fmt.Sprint(s.Options), "map[]")
	}
	return out
}

// with is the setting with one more parameter.
func (s Setting) with(name string, value any) Setting {
	options := map[string]any{name: value}
	for k, v := range s.Options {
		if k != name {
			options[k] = v
		}
	}
	s.Options = options
	return s
}

// setting is the setting of a row of methods.
func (t *printed) setting(r *printedRow) Setting {
	base, ok := bases[r.Method]
	if !ok {
		return full // the row of the model itself
	}
	s := Setting{Base: base, NVis: r.NVis, Plain: !r.Restore}
	switch n := modelTokens[t.Model]; {
	case n == 0:
		s.Share = r.Percent / 100
		if s.Share > 0.33 && s.Share < 0.34 {
			s.Share = 1. / 3
		}
	case n != 576: // convert budgets of other models to shares
		s.Share = float64(r.NVis) / float64(n)
	}
	if r.Gamma > 0 {
		s = s.with("gamma", r.Gamma)
	}
	return s
}

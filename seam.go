package restore

import (
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
)

func init() {
	seam.Options = func(o any) engine.Options { return o.(*Options).engine() }
	seam.Engine = func(m any) *engine.Engine { return m.(*Model).e }
	seam.Model = func(e *engine.Engine, o any) any { return newModel(e, nil, o.(*Options)) }
	seam.Image = func(p any) *engine.Image {
		im, _ := p.(*Picture).image()
		return &im
	}
	seam.Reduction = func(r any) (methods.Options, error) { return r.(*Reduction).options() }
	seam.Video = func(v any) (*imageproc.Video, error) { return v.(*Video).engine() }
}

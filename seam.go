package restore

import (
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/seam"
)

func init() {
	seam.Options = func(o any) engine.Options { return o.(*Options).engine() }
	seam.Engine = func(m any) *engine.Engine { return m.(*Model).e }
	seam.Model = func(e *engine.Engine, o any) any { return newModel(e, nil, o.(*Options)) }
	seam.Pixels = func(p any) (*imageproc.Picture, error) { return p.(*Picture).im.Pixels() }
	seam.Video = func(v any) (*imageproc.Video, error) { return v.(*Video).engine() }
}

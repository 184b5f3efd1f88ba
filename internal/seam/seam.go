// Package seam lets the laboratory reach the engine behind the front door. Package restore fills it
// in; its types are any because they would be a circle of imports.
package seam

import (
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
)

var (
	// Options returns the engine's options of a *restore.Options, without its cache on disk.
	Options func(o any) engine.Options
	// Engine returns the engine of a *restore.Model.
	Engine func(m any) *engine.Engine
	// Model returns the *restore.Model of an engine that was opened with a *restore.Options.
	Model func(e *engine.Engine, o any) any
	// Image returns a *restore.Picture as a picture of the engine's requests.
	Image func(p any) *engine.Image
	// Reduction returns a *restore.Reduction, which may be nil, as the engine's options.
	Reduction func(r any) (methods.Options, error)
	// Video decodes a *restore.Video, which may be nil.
	Video func(v any) (*imageproc.Video, error)
)

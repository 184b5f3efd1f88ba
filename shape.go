package restore

import (
	"github.com/restore-vlm/restore/internal/shape"
)

// Shapes returns the names of the published models whose sizes this program knows.
func Shapes() []string { return shape.Names() }

// DescribeShape describes a model without its weights, as [Open] does with Options.Describe. name
// is one of [Shapes], or names the file of config, the config.json of any model.
func DescribeShape(name string, config []byte, o *Options) (*Model, error) {
	if o == nil {
		o = new(Options)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	s, err := shape.New(name, config)
	if err != nil {
		return nil, err
	}
	e, err := s.Describe(o.engine())
	if err != nil {
		return nil, modelError(name, err)
	}
	return newModel(e, nil, o), nil
}

package engine

import (
	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Times are predictions in seconds for a question about one picture.
type Times struct {
	Encode  float64 // of the picture
	Prefill float64 // of the prompt with the reduced picture
	First   float64 // until the first token: both, plus selecting and merging
	Token   float64 // each token after the first
}

// Speed returns how fast this machine computes with the engine's threads. It is measured at the
// first use on this machine. about, which may be nil, is called before the measurement, which takes
// one or two seconds.
func (e *Engine) Speed(about func()) *kernel.Speed { return calibrate.Speed(e.pool, about) }

// PredictTimes predicts the duration of one question on a machine of speed s, with the weights of
// source: the engine's own, or the same files with other types. It does not support reducers inside
// the encoder or the decoder.
func (e *Engine) PredictTimes(
	s *kernel.Speed, source *model.Source, question Question,
) (*Times, error) {
	q, err := e.sizeOf(question)
	if err != nil {
		return nil, err
	}
	shape := e.m.Decoder().Shape()
	var t Times
	hidden, layers := shape.Hidden, float64(shape.Layers)
	rows, attention := e.m.EncodeWork(q.px, q.share())
	for _, p := range source.Products() {
		f := nn.FormatOf(p.Type)
		switch {
		case p.Head:
			t.Prefill += s.Product(f, 1, p.Out, p.In)
			t.Token += s.Product(f, 1, p.Out, p.In)
		case p.Decoder:
			for lo := 0; lo < q.prompt; lo += prefillChunk {
				t.Prefill += s.Product(f, min(prefillChunk, q.prompt-lo), p.Out, p.In)
			}
			t.Token += s.Product(f, 1, p.Out, p.In)
		default:
			// each output takes part in approximately one activation, norm or sum
			t.Encode += s.Product(f, rows, p.Out, p.In) + float64(rows)*float64(p.Out)/s.Elements
		}
	}
	encoder, _ := source.Encoder()
	t.Encode += attention / s.Attention[model.TowerRounding(encoder)]
	n, elements := float64(q.prompt), layers*float64(4*hidden+shape.MLP)/s.Elements
	pairs := layers * n * n / 2 // causal
	rounding := kernel.Exact
	if source.Rounds() {
		rounding = kernel.RoundPairs
	}
	t.Prefill += pairs*4*float64(shape.Heads*shape.HeadDim)/s.Attention[rounding] + n*elements
	cache := float64(e.shape.CacheBytes(q.prompt+question.Generated/2, e.halves(source)))
	t.Token += cache/s.Read + elements
	t.First = t.Encode + t.Prefill
	if q.kept < q.encoded { // every token is compared with every other
		t.First += s.Product(kernel.F32, q.encoded, q.encoded, hidden)
	}
	return &t, nil
}

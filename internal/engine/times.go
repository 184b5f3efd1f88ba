package engine

import (
	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Times are predicted, in seconds, for a question about one picture.
type Times struct {
	Encode  float64 // of the picture
	Prefill float64 // of the prompt, the reduced picture in it
	First   float64 // until the first token: both, and selecting and merging
	Token   float64 // each one after it
}

// Speed is how fast this machine computes with the engine's threads, measured at the first
// use on this machine. about, which may be nil, is told before it is measured, which takes
// one or two seconds.
func (e *Engine) Speed(about func()) *kernel.Speed { return calibrate.Speed(e.pool, about) }

// Predict says how long one question takes on a machine of speed s. Reducers inside encoder
// or decoder are not known to it.
func (e *Engine) Predict(s *kernel.Speed, question Question) (*Times, error) {
	return e.predict(s, e.ck.Products(), question)
}

// PredictAs is Predict with the decoder's weights kept as quant. It reads no weights.
func (e *Engine) PredictAs(s *kernel.Speed, quant string, question Question) (*Times, error) {
	src, err := boundAs(e.ck.Bundle, Options{Quant: quant, EncoderQuant: e.ck.Plan.Encoder})
	if err != nil {
		return nil, err
	}
	return e.predict(s, src.Products(), question)
}

func (e *Engine) predict(
	s *kernel.Speed, products []model.Product, question Question,
) (*Times, error) {
	q, err := e.size("predict", question)
	if err != nil {
		return nil, err
	}
	var t Times
	hidden, layers := e.shape.Hidden, float64(e.shape.Layers)
	rows, attention := e.m.EncodeWork(q.px)
	for _, p := range products {
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
			// each output passes through about one activation, norm or sum
			t.Encode += s.Product(f, rows, p.Out, p.In) + float64(rows)*float64(p.Out)/s.Elements
		}
	}
	t.Encode += attention / s.Attention
	n, elements := float64(q.prompt), layers*float64(4*hidden+e.shape.MLP)/s.Elements
	pairs := layers * n * n / 2 // causal
	t.Prefill += pairs*4*float64(e.shape.Heads*e.shape.HeadDim)/s.Attention + n*elements
	cache := float64(e.shape.CacheBytes(q.prompt+question.Generated/2, e.half))
	t.Token += cache/s.Read + elements
	t.First = t.Encode + t.Prefill
	if q.kept < q.tokens { // every token is compared with every other
		t.First += s.Product(kernel.F32, q.tokens, q.tokens, hidden)
	}
	return &t, nil
}

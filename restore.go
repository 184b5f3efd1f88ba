// Package restore answers questions about pictures with multimodal LLMs. It reads
// 64 visual tokens where the model makes 576: a published criterion keeps some
// tokens, the others are merged into distinctive anchors, every token keeps its
// original position, and the attention is calibrated for group size and distance
// (RESTORE, ICML 2026).
//
//	m, err := restore.Open(ctx, "") // the embedded model
//	defer m.Close()
//	pic, err := restore.OpenPicture("cat.jpg")
//	ans, err := m.Ask(ctx, restore.Request{
//		Prompt:    "What is there?",
//		Pictures:  []*restore.Picture{pic},
//		Reduction: &restore.Reduction{Base: "holov", NVis: 64},
//	})
//	fmt.Println(ans.Text)
//
// The main types are [Model], [Request] with its [Reduction], [Answer], and [Conversation], which
// keeps what it has read between questions. Pictures come from [OpenPicture], [ReadPicture],
// [DecodePicture] or [FromImage].
//
// # Errors
//
// Package errs holds the errors that callers branch on. A call whose context ends returns the
// answer so far, with Finish "cancelled", and [context.Cause] of the context. No value is clamped
// or ignored: an option that cannot be honoured is an [errs.OptionError] that names it.
//
// # Concurrency
//
// A Model serves any number of requests at once, from any number of goroutines; the
// answer to one does not depend on the others. A Conversation belongs to one caller.
package restore

import (
	"context"
	"io"

	"github.com/restore-vlm/restore/internal/engine"
)

// Open loads the model at path: a Hugging Face folder, a folder of the hub's cache, or a file
// written by [Pack]. An empty path is the small model embedded in the program, which knows only
// drawn scenes.
//
// The files stay in use until Close. If one of them is cut short before that, requests fail with
// [errs.ErrDamaged]; if weights are overwritten, requests compute with the new bytes. The weights
// of a packed file are checked while the first requests run. If one does not match its checksum,
// every request fails with [errs.ErrDamaged], before its first token.
//
// Every weight is bound by name and shape. The error is an [errs.ModelError] when the files do not
// make a model (it lists everything that does not fit), an [errs.OptionError] when an option is
// refused, an [errs.MemoryError] when the weights do not fit into memory, or the cause of ctx.
func Open(ctx context.Context, path string, options ...Option) (*Model, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	o := apply(options)
	o.files.Model = path
	e, err := engine.Open(o.files, o.engine)
	if err != nil {
		return nil, modelError(path, err)
	}
	return &Model{e: e}, nil
}

// Pack writes the model at path, which is a path for Open, to w as one file that opens quickly: its
// weights already have the types that the options set. Open refuses a packed file that is cut short
// or older than its source files. Pack returns the errors of Open and of w.
func Pack(ctx context.Context, path string, w io.Writer, options ...Option) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	o := apply(options)
	o.files.Model = path
	return modelError(path, engine.PackFiles(o.files, o.engine, w))
}

// Model is a loaded model with its tokenizer, chat template and picture processor.
type Model struct {
	e *engine.Engine
}

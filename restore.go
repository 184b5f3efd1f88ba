// Package restore answers questions about pictures with multimodal LLMs, reading
// 64 visual tokens where the model makes 576: tokens are kept by a published
// criterion, the rest is merged into distinctive anchors, original positions
// stay, and attention is calibrated for group size and distance (RESTORE, ICML
// 2026).
//
//	m, err := restore.Open("", restore.OpenOptions{}) // the embedded model
//	ans, err := m.Ask(ctx, restore.Request{
//		Prompt: "What shape is the red object?",
//		Images: []*imageproc.Picture{pic},
//		Reduce: reduce.Options{Base: "holov", NVis: 64, Restore: true},
//	})
//
// The names to know: [Model], [Request], [Answer] with its [Report], and
// [Conversation], which keeps reduced tokens and the KV cache between turns.
package restore

import (
	"errors"
	"io"

	"github.com/restore-vlm/restore/builtin"
	"github.com/restore-vlm/restore/checkpoint"
	"github.com/restore-vlm/restore/engine"
)

type (
	// Model is a loaded model; it serves any number of requests at once.
	Model = engine.Engine
	// Conversation is a dialogue that keeps what it has read.
	Conversation = engine.Conversation
	// OpenOptions configure Open.
	OpenOptions = engine.Options
	// Request is one question.
	Request = engine.Request
	// Answer is what came of a Request.
	Answer = engine.Answer
	// Report says what was done and how long it took.
	Report = engine.Report
	// ImageReport is one picture's share of a Report.
	ImageReport = engine.ImageReport
	// Seen holds encoded pictures that several requests share.
	Seen = engine.Seen
	// TraceRequest is one forward whose every intermediate is wanted.
	TraceRequest = engine.TraceRequest
	// FitOptions say how FitPrune's recipe is made.
	FitOptions = engine.FitOptions
	// Info describes a loaded model.
	Info = engine.Info
	// AttentionShare is how much attention visual rows receive in each layer.
	AttentionShare = engine.AttentionShare
	// Footprint is the memory that a question takes.
	Footprint = engine.Footprint
	// Sizes are what the number of operations depends on.
	Sizes = engine.Sizes
	// Tower is a stack of transformer blocks in Sizes.
	Tower = engine.Tower
)

// How an answer ended.
const (
	FinishStop      = engine.FinishStop
	FinishLength    = engine.FinishLength
	FinishCancelled = engine.FinishCancelled
)

// What OpenOptions' Quant and EncoderQuant may be, besides "".
var (
	QuantTypes        = engine.QuantTypes
	EncoderQuantTypes = engine.EncoderQuantTypes
)

// CacheTypes is what OpenOptions' CacheType may be, besides "".
var CacheTypes = engine.CacheTypes

// Open loads the model in dir: a Hugging Face directory, a folder of the hub's
// cache, or a file that Pack wrote. An empty dir is the small model that is part of
// the program. Every weight is bound by name and shape; the error lists all that do
// not fit.
func Open(dir string, o OpenOptions) (*Model, error) {
	ck, err := OpenCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	m, err := engine.New(ck, o)
	if err != nil {
		ck.Close()
		return nil, err
	}
	return m, nil
}

// Pack writes the model in dir, as Open takes it, to w with its weights as o's
// Quant and EncoderQuant say. The file is checked when it is opened: one that is
// damaged, cut short, older than the directory's files, or of a form that the
// program no longer computes with, is refused.
func Pack(dir string, o OpenOptions, w io.Writer) error {
	ck, err := OpenCheckpoint(dir)
	if err != nil {
		return err
	}
	return errors.Join(engine.Pack(ck, o, w), ck.Close())
}

// OpenCheckpoint opens the files of the model in dir, as Open does, and binds
// nothing.
func OpenCheckpoint(dir string) (*checkpoint.Checkpoint, error) {
	if dir != "" {
		return checkpoint.Open(dir)
	}
	ck, err := checkpoint.OpenFS(builtin.FS(), ".")
	if err == nil {
		ck.Name = builtin.Name
	}
	return ck, err
}

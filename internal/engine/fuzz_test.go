package engine_test

import (
	"bytes"
	"context"
	"os"
	"testing"
	"testing/fstest"

	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
	"github.com/restore-vlm/restore/internal/formats"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/model/families"
)

// FuzzConfig opens the tiny checkpoint with any config.json: no panic, and no memory beyond the
// size of the weights and the file.
func FuzzConfig(f *testing.F) {
	weights, err := os.ReadFile("testdata/llava15-tiny/model.safetensors")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"llava15-tiny", "llava15-gqa-full-tiny"} {
		for _, file := range []string{"config.json", "config-5.x.ref"} {
			config, err := os.ReadFile("testdata/" + name + "/" + file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(config)
		}
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		dir, err := folder.OpenFS(fstest.MapFS{
			"config.json": {Data: config}, "model.safetensors": {Data: weights},
		}, ".")
		if err != nil {
			t.Fatal(err)
		}
		ck, err := hf.Open(dir, families.Files)
		if err != nil {
			return
		}
		e, err := engine.New(ck, engine.Options{Threads: 1}, engine.Hooks{})
		if err != nil {
			ck.Close()
			return
		}
		e.Close()
	})
}

// FuzzTrace runs a trace on any safetensors file.
func FuzzTrace(f *testing.F) {
	for _, prompt := range []string{"text-only", "one-image"} {
		raw := golden.ReadFile(f, "testdata/llava15-tiny/"+prompt+".ref")
		f.Add(raw)
	}
	f.Add([]byte("\x60\x00\x00\x00\x00\x00\x00\x00" +
		`{"input_ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}` +
		"                                 " +
		"\x01\x00\x00\x00\x00\x00\x00\x00\x3e\x01\x00\x00\x00\x00\x00\x00"))
	ck, err := formats.Open("testdata/llava15-tiny")
	if err != nil {
		f.Fatal(err)
	}
	e, err := engine.New(ck, engine.Options{Threads: 1}, engine.Hooks{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { e.Close() })
	f.Fuzz(func(t *testing.T, raw []byte) {
		tensors, err := checkpoint.ReadSafetensors(bytes.Clone(raw))
		if err != nil {
			return
		}
		_, _ = lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: tensors, Tokens: 2})
	})
}

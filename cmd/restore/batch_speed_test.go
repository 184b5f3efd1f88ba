package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/scene"
)

// TestBatchSpeed prints the answers per second of a file of requests, compared with the same
// requests one at a time and without shared prefixes. The environment names a shape, as in
// RESTORE_BATCH_SPEED=llava-1.5-7b; weights are random, at q4, with 64 visual tokens and answers of
// 32 tokens.
func TestBatchSpeed(t *testing.T) {
	shape := os.Getenv("RESTORE_BATCH_SPEED")
	if shape == "" {
		t.Skip("measures")
	}
	o := &loadOptions{shape: shape}
	fs := pflag.NewFlagSet("speed", pflag.ContinueOnError)
	o.engine.add(fs)
	if err := fs.Parse([]string{"--quant", "q4", "--parallel", "16"}); err != nil {
		t.Fatal(err)
	}
	o.engine.queue, o.engine.throughput = 64, true
	b, e, err := o.open(&app{err: os.Stderr, getenv: os.Getenv}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	loader, err := media.New(media.Options{MaxBytes: 20 * mb})
	if err != nil {
		t.Fatal(err)
	}
	defer loader.Close()
	limits := answeringFlags{maxImages: 16, maxImage: 20, maxPixels: 64_000_000}
	h := batch.Handler{Handler: limits.inProcess(b, loader, slog.New(slog.DiscardHandler))}
	seed := int64(0)
	run := func(
		t *testing.T, pictures, questions, parallel int, cache bool,
	) float64 {
		var in bytes.Buffer
		for range pictures {
			seed++
			var pic bytes.Buffer
			if err := png.Encode(&pic, scene.New(seed).Image()); err != nil {
				t.Fatal(err)
			}
			url := "data:;base64," + base64.StdEncoding.EncodeToString(pic.Bytes())
			for q := range questions {
				content := []any{map[string]any{"type": "image_url", "image_url": url},
					map[string]any{
						"type": "text", "text": fmt.Sprintf("Question %d: what is there?", q),
					}}
				line := map[string]any{
					"custom_id": fmt.Sprint(seed, q), "url": "/v1/chat/completions",
					"body": map[string]any{"max_tokens": 32, "ignore_eos": true,
						"messages": []any{map[string]any{"role": "user", "content": content}},
						"restore":  map[string]any{"n_vis": 64, "cache": cache}}}
				if err := json.NewEncoder(&in).Encode(line); err != nil {
					t.Fatal(err)
				}
			}
		}
		dir := t.TempDir()
		j, err := batch.OpenJournal(dir, filepath.Join(dir, "out"))
		if err == nil {
			err = j.Begin(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		s, err := batch.Run(t.Context(), &in, j, h, batch.Options{
			Parallel: parallel, MaxLine: batchLine,
		})
		if err != nil || s.Answers != pictures*questions {
			t.Fatalf("%+v, %v", s, err)
		}
		return float64(s.Answers) / s.Seconds
	}
	for _, c := range []struct{ pictures, questions int }{{3, 5}, {8, 1}} {
		t.Run(fmt.Sprintf("%d questions", c.questions), func(t *testing.T) {
			one := run(t, 1, 1, 1, false)
			many := run(t, c.pictures, c.questions, 32, true)
			t.Logf("%d questions a picture: %.3f answers a second one at a time, %.3f as a "+
				"file: %.2f times", c.questions, one, many, many/one)
		})
	}
}

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/scene"
)

// BenchmarkBatch shows the answers per second of a file of requests, compared with the same
// requests one at a time and without shared prefixes. RESTORE_BATCH_SPEED is the model's folder;
// without it the model is the embedded one. Pictures have 64 visual tokens, and answers 32 tokens.
// An operation is a request.
func BenchmarkBatch(b *testing.B) {
	o := new(cli.EngineFlags)
	fs := pflag.NewFlagSet("batch", pflag.ContinueOnError)
	o.Add(fs)
	if err := fs.Parse([]string{"--quant", "q4", "--parallel", "16"}); err != nil {
		b.Fatal(err)
	}
	o.Model.Path = os.Getenv("RESTORE_BATCH_SPEED")
	o.Queue, o.Throughput = 64, true
	a := cli.NewApp(thisProgram, nil, nil, os.Stderr, os.Getenv)
	log := slog.New(slog.DiscardHandler)
	mo, end, err := o.Options(a, log)
	if err != nil {
		b.Fatal(err)
	}
	m, err := o.Model.Opened(b.Context(), mo)
	end()
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	loader, err := media.New(media.Options{MaxBytes: 20 * cli.MB})
	if err != nil {
		b.Fatal(err)
	}
	defer loader.Close()
	h := batch.Service{Log: log, Front: api.NewFront(m, api.Settings{
		Reduction: &restore.Reduction{Base: "holov"},
		Pictures:  restore.PictureOptions{MaxPixels: 64_000_000, MaxBytes: 20 * cli.MB},
		MaxImages: 16, Media: loader,
	})}
	seed := int64(0)
	for _, c := range []struct {
		name                string
		questions, parallel int // questions about a picture; requests at once
		cache               bool
	}{{"alone", 1, 1, false}, {"5 questions", 5, 32, true}, {"1 question", 1, 32, true}} {
		b.Run(c.name, func(b *testing.B) {
			var in bytes.Buffer
			for i := range b.N {
				if i%c.questions == 0 {
					seed++
				}
				if err := json.NewEncoder(&in).Encode(question64(b, seed, i, c.cache)); err != nil {
					b.Fatal(err)
				}
			}
			dir := b.TempDir()
			j, err := batch.OpenJournal(dir, filepath.Join(dir, "out"))
			if err == nil {
				err = j.Begin(nil)
			}
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			b.ResetTimer()
			s, err := batch.Run(b.Context(), &in, j, h, batch.Options{
				Parallel: c.parallel, MaxLine: batchLine,
			})
			if err != nil || s.Answers != b.N {
				b.Fatalf("%+v, %v", s, err)
			}
			b.ReportMetric(float64(s.Answers)/s.Seconds, "answers/s")
		})
	}
}

// question64 is line i of a file: a question about scene seed, with 64 visual tokens.
func question64(b *testing.B, seed int64, i int, cache bool) map[string]any {
	url := "data:;base64," + base64.StdEncoding.EncodeToString(scene.New(seed).PNG())
	content := []any{
		map[string]any{"type": "image_url", "image_url": url},
		map[string]any{"type": "text", "text": fmt.Sprintf("Question %d: what is there?", i)},
	}
	return map[string]any{
		"custom_id": fmt.Sprint(i), "url": "/v1/chat/completions",
		"body": map[string]any{"max_tokens": 32, "ignore_eos": true,
			"messages": []any{map[string]any{"role": "user", "content": content}},
			"restore":  map[string]any{"n_vis": 64, "cache": cache}}}
}

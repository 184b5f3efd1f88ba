package server

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/media"
)

// BenchmarkRequest is what the server itself costs a request with a picture's file of 130 kB:
// the body, its checks, base64, the reply; connection, pictures and model left out.
func BenchmarkRequest(b *testing.B) {
	loader, err := media.New(media.Options{MaxBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	f := newFake()
	f.parallel = 64
	s := New(Options{
		MaxBodyBytes: 1 << 20, MaxImages: 2, MaxImageBytes: 1 << 20, MaxImagePixels: 1 << 20,
		Media: loader,
	})
	s.Ready(f)
	data := make([]byte, 130_000)
	copy(data, "\x89PNG\r\n\x1a\n")
	picture := `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		base64.StdEncoding.EncodeToString(data) + `"}},{"type":"text","text":"where?"}]}],"stream":`
	for name, body := range map[string]string{
		"whole": picture + "false}", "stream": picture + "true}",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				s.ServeHTTP(
					w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions",
						strings.NewReader(body)))
				if w.Code != http.StatusOK {
					text, _ := io.ReadAll(w.Body)
					b.Fatalf("%d %s", w.Code, text)
				}
			}
		})
	}
}

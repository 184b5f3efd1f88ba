package server

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/media"
)

// BenchmarkRequest measures the server's own work for a request with a picture file of 130 kB:
// body, checks, base64, reply; without connection, pictures and model.
func BenchmarkRequest(b *testing.B) {
	s, bodies := costServer(b, 0)
	for name, body := range bodies {
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

// costServer is a server whose answers are 32 words with a pause before each, and requests to it.
func costServer(b testing.TB, pause time.Duration) (s *Server, bodies map[string]string) {
	loader, err := media.New(media.Options{MaxBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	f := newFake()
	f.pause, f.parallel, f.words = pause, 64, strings.Fields(strings.Repeat("word ", 32))
	f.prepare = func(*ask.Request) error { // otherwise all pictures would be kept
		f.mu.Lock()
		defer f.mu.Unlock()
		f.requests = nil
		return nil
	}
	s = New(Options{
		MaxBodyBytes: 1 << 20, MaxImages: 2, MaxImageBytes: 1 << 20, MaxImagePixels: 1 << 20,
		Media: loader,
	})
	s.Ready(f)
	data := make([]byte, 130_000)
	copy(data, "\x89PNG\r\n\x1a\n")
	picture := `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		base64.StdEncoding.EncodeToString(data) + `"}},{"type":"text","text":"where?"}]}],"stream":`
	return s, map[string]string{"whole": picture + "false}", "stream": picture + "true}"}
}

// costClients is how many clients ask at once in BenchmarkServed.
const costClients = 32

// BenchmarkServed measures the processor time of a process per request, including connections: it
// serves 32 concurrent clients in another process. Words are produced as fast as they are read, or,
// in the paced stream, so slowly that each is sent alone, as with a model.
func BenchmarkServed(b *testing.B) {
	if pause := os.Getenv("RESTORE_COST"); pause != "" { // this is that process
		d, err := time.ParseDuration(pause)
		if err != nil {
			b.Fatal(err)
		}
		s, _ := costServer(b, d)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		fmt.Println(l.Addr())
		go func() { _ = http.Serve(l, s) }()
		_, _ = io.Copy(io.Discard, os.Stdin) // until the other one is done
		return
	}
	_, bodies := costServer(b, 0)
	bodies["paced"] = bodies["stream"]
	for name, body := range bodies {
		pause := "0s"
		if name == "paced" {
			pause = "5ms"
		}
		b.Run(name, func(b *testing.B) {
			cmd := exec.Command(os.Args[0], "-test.run", "^$", "-test.bench", "Served$",
				"-test.benchtime", "1x")
			cmd.Env = append(os.Environ(), "RESTORE_COST="+pause)
			stop, err := cmd.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			url := ""
			for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
				if _, port, err := net.SplitHostPort(lines.Text()); err == nil {
					url = "http://127.0.0.1:" + port + "/v1/chat/completions"
				}
			}
			go func() { _, _ = io.Copy(io.Discard, out) }()
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: costClients}}
			slots := make(chan struct{}, costClients)
			var all sync.WaitGroup
			for b.Loop() {
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					resp, err := client.Post(url, "application/json", strings.NewReader(body))
					if err != nil {
						b.Error(err)
						return
					}
					defer resp.Body.Close()
					if _, err = io.Copy(io.Discard, resp.Body); err != nil ||
						resp.StatusCode != http.StatusOK {
						b.Error(resp.Status, err)
					}
				})
			}
			all.Wait()
			_ = stop.Close()
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
			used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "processor-ms/op")
		})
	}
}

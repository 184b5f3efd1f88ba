package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
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
				s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions",
					strings.NewReader(body)))
				if w.Code != http.StatusOK {
					text, _ := io.ReadAll(w.Body)
					b.Fatalf("%d %s", w.Code, text)
				}
			}
		})
	}
}

// stepper is a stand-in for a model: in each step it makes a word of every answer.
type stepper struct {
	*fake
	pause time.Duration // between steps; 0: an answer is there at once

	mu   sync.Mutex
	jobs []*stepJob
}

// stepJob is an answer of costWords words.
type stepJob struct {
	*fakeJob
	words chan *restore.Piece
	made  int
	over  chan struct{} // closed after the last word
}

// costWords is the length of an answer.
const costWords = 32

func (f *stepper) Submit(_ context.Context, r *restore.Request) (restore.Job, error) {
	j, err := f.job(r)
	if err != nil {
		return nil, err
	}
	words := make(chan *restore.Piece, costWords)
	s := &stepJob{fakeJob: j, words: words, over: make(chan struct{})}
	if f.pause == 0 {
		for s.step() {
		}
		return s, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.jobs = append(f.jobs, s)
	return s, nil
}

// run makes all answers.
func (f *stepper) run() {
	for range time.Tick(f.pause) {
		f.mu.Lock()
		f.jobs = slices.DeleteFunc(f.jobs, func(j *stepJob) bool { return !j.step() })
		f.mu.Unlock()
	}
}

// step makes a word. It returns false after the last one.
func (j *stepJob) step() bool {
	j.words <- &restore.Piece{Text: "word"}
	if j.made++; j.made == costWords {
		close(j.words)
		close(j.over)
	}
	return j.made < costWords
}

func (j *stepJob) Next() (*restore.Piece, bool) {
	e, ok := <-j.words
	return e, ok
}

func (j *stepJob) Ready() bool { return len(j.words) > 0 }

func (j *stepJob) Answer() (*restore.Answer, error) {
	<-j.over
	u := j.c.Usage
	u.Generated = costWords
	return &restore.Answer{
		Text: strings.Repeat("word", costWords), Finish: restore.FinishStop, Usage: u,
		Pictures: j.c.Pictures,
	}, nil
}

// costServer is a server whose answers are 32 words with a pause before each, and requests to it.
func costServer(b testing.TB, pause time.Duration) (s *Server, bodies map[string]string) {
	loader, err := media.New(media.Options{MaxBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	f := &stepper{fake: newFake(), pause: pause}
	f.prepare = func(*restore.Request) error { // otherwise all pictures would be kept
		f.fake.mu.Lock()
		defer f.fake.mu.Unlock()
		f.requests = nil
		return nil
	}
	if pause > 0 {
		go f.run()
	}
	s = New(Options{MaxBodyBytes: 1 << 20})
	how := settings(loader)
	how.Pictures.MaxBytes = 1 << 20
	s.Ready(f, how)
	var file bytes.Buffer
	e := png.Encoder{CompressionLevel: png.NoCompression}
	if err := e.Encode(&file, image.NewRGBA(image.Rect(0, 0, 180, 180))); err != nil {
		b.Fatal(err)
	}
	data := file.Bytes()
	picture := `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		base64.StdEncoding.EncodeToString(data) + `"}},{"type":"text","text":"where?"}]}],"stream":`
	return s, map[string]string{"whole": picture + "false}", "stream": picture + "true}"}
}

// costClients is how many clients ask at once in BenchmarkServed.
const costClients = 32

// BenchmarkServed measures the processor time of a process per request, including connections: it
// serves 32 concurrent clients in another process. The words of an answer are there at once, or, in
// the paced stream, come so slowly that each is sent alone, as with a model.
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
	bodies["paced stream"], bodies["paced whole"] = bodies["stream"], bodies["whole"]
	for name, body := range bodies {
		pause := "0s"
		if strings.HasPrefix(name, "paced") {
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

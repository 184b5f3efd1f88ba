package fleet

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// The times of a question in BenchmarkAffinity, a hundredth of Qwen2.5-VL-3B's in docs/scaling.md:
// encoding a picture, and everything else. The rows of a picture are a hundredth too.
const (
	encodePicture = 60 * time.Millisecond
	answerKnown   = 40 * time.Millisecond
	pictureRows   = 5000 // bytes
)

// slow is a service with one processor that caches the pictures that it has encoded.
type slow struct {
	*echo
	shared *Features // nil: every worker encodes for itself

	mu      sync.Mutex
	known   map[string]bool
	encoded int

	device sync.Mutex
}

// work takes the time of a question about the picture. As in the engine, other questions are
// answered while one waits for the worker that encodes its picture.
func (b *slow) work(picture string) {
	key := sha256.Sum256([]byte(picture))
	if b.shared != nil && !b.has(picture) {
		if _, ok := b.shared.Load(key, true); ok {
			b.learn(picture, 0)
		}
	}
	b.device.Lock()
	defer b.device.Unlock()
	if !b.has(picture) {
		time.Sleep(encodePicture)
		b.learn(picture, 1)
		if b.shared != nil {
			go b.shared.Save(key, make([]byte, pictureRows))
		}
	}
	time.Sleep(answerKnown)
}

func (b *slow) has(picture string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known[picture]
}

func (b *slow) learn(picture string, encoded int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[picture] = true
	b.encoded += encoded
}

// BenchmarkAffinity shows the effect of sending all questions about a picture to one worker, and of
// sharing reduced pictures: encodings per picture, and answers per second, with five questions per
// picture. Without affinity the copies of a picture differ in a byte in the queue, and are the same
// picture to the workers. An operation is a question: -benchtime 1200x asks about 240 pictures.
func BenchmarkAffinity(b *testing.B) {
	for _, workers := range []int{4, 8} {
		for _, affinity := range []bool{false, true} {
			for _, shared := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d workers/affinity=%t/shared=%t", workers, affinity, shared),
					func(b *testing.B) { askSlow(b, workers, affinity, shared) })
			}
		}
	}
}

func askSlow(b *testing.B, workers int, affinity, shared bool) {
	const questions = 5
	s := natsServer(b)
	backs, list := make([]*slow, workers), make([]*Worker, workers)
	for i := range backs {
		back := &slow{echo: newEcho(4), known: map[string]bool{}}
		back.trying = func(text string) error {
			back.work(strings.Fields(text)[0])
			return nil
		}
		c := connect(b, s, quick)
		if shared {
			back.shared = openFeatures(b, c)
		}
		backs[i] = back
		list[i], _ = runWorker(b, c, back, "m1")
	}
	k := newClient(b, connect(b, s, quick), ClientOptions{})
	meet(b, list...)
	var all sync.WaitGroup
	slots := make(chan struct{}, 512) // as `restore batch` asks
	b.ResetTimer()
	for i := range b.N {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			name := fmt.Sprint("p", i/questions)
			data := name
			if !affinity {
				data += fmt.Sprint(" ", i)
			}
			q := question(fmt.Sprint(name, " ", i), []byte(data))
			if _, err := answerOf(b.Context(), k, q); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	encoded, pictures := 0, (b.N+questions-1)/questions
	for _, back := range backs {
		encoded += back.encoded
	}
	b.ReportMetric(float64(encoded)/float64(pictures), "encoded/picture")
	b.ReportMetric(60*float64(b.N)/b.Elapsed().Seconds(), "answers/min")
}

package fleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// The times of a question in BenchmarkAffinity: the first about a picture, and later ones.
// They are a hundredth of a 7B model's times in docs/scaling.md.
const (
	newPicture   = 100 * time.Millisecond
	knownPicture = 40 * time.Millisecond
)

// slow is a service with one processor that caches the pictures that it has seen.
type slow struct {
	*echo
	device sync.Mutex
	known  map[string]bool
}

// work takes the time of a question about the picture.
func (b *slow) work(picture string) {
	b.device.Lock()
	defer b.device.Unlock()
	if !b.known[picture] {
		b.known[picture] = true
		time.Sleep(newPicture - knownPicture)
	}
	time.Sleep(knownPicture)
}

// BenchmarkAffinity shows the effect of sending all questions about a picture to one worker:
// encodings per picture, and answers per second, with five questions per picture. For comparison,
// the same questions are asked about copies of the pictures that differ in a byte. An operation is
// a question: -benchtime 1200x asks about 240 pictures.
func BenchmarkAffinity(b *testing.B) {
	for name, together := range map[string]bool{"one worker": true, "any worker": false} {
		b.Run(name, func(b *testing.B) {
			const workers, questions = 8, 5
			s := natsServer(b)
			backs, list := make([]*slow, workers), make([]*Worker, workers)
			for i := range backs {
				back := &slow{echo: newEcho(4), known: map[string]bool{}}
				back.trying = func(text string) error {
					back.work(strings.Fields(text)[0])
					return nil
				}
				backs[i] = back
				list[i], _ = runWorker(b, connect(b, s, quick), back, "m1")
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
					if !together {
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
				encoded += len(back.known)
			}
			b.ReportMetric(float64(encoded)/float64(pictures), "encoded/picture")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "answers/s")
		})
	}
}

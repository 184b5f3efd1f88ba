//go:build unix

package fleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// The times of a question in this test, one at a time: the first about a picture, and later ones.
// They are a hundredth of a 7B model's times in docs/scaling.md.
const (
	newPicture   = 100 * time.Millisecond
	knownPicture = 40 * time.Millisecond
)

// slow is a backend with one processor that caches the pictures that it has seen.
type slow struct {
	*echo
	device sync.Mutex
	known  map[string]bool
}

// work is the time of a question about the picture.
func (b *slow) work(picture string) {
	b.device.Lock()
	defer b.device.Unlock()
	if !b.known[picture] {
		b.known[picture] = true
		time.Sleep(newPicture - knownPicture)
	}
	time.Sleep(knownPicture)
}

// TestChaosAffinity prints the effect of sending all questions about a picture to one worker:
// encodings per picture, and answers per second, with five questions per picture. For comparison,
// the same questions are asked about copies of the pictures that differ in a byte.
func TestChaosAffinity(t *testing.T) {
	if !full() {
		t.Skip("measures")
	}
	const workers, pictures, questions = 8, 240, 5
	for _, together := range []bool{true, false} {
		s := natsServer(t)
		backs, list := make([]*slow, workers), make([]*Worker, workers)
		for i := range backs {
			b := &slow{echo: newEcho(4), known: map[string]bool{}}
			b.trying = func(text string) error {
				b.work(strings.Fields(text)[0])
				return nil
			}
			backs[i] = b
			list[i], _ = runWorker(t, connect(t, s, quick), b, "m1")
		}
		k := newClient(t, connect(t, s, quick), ClientOptions{})
		meet(t, list...)
		var all sync.WaitGroup
		slots := make(chan struct{}, 512) // as `restore batch` asks
		begun := time.Now()
		for i := range pictures * questions {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				name := fmt.Sprint("p", i/questions)
				data := name
				if !together {
					data += fmt.Sprint(" ", i)
				}
				q := question(fmt.Sprint(name, " ", i), []byte(data))
				if _, err := answerOf(t.Context(), k, q); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		took := time.Since(begun)
		encoded := 0
		for _, b := range backs {
			encoded += len(b.known)
		}
		t.Logf("affinity %-5v: %.2f encoded a picture, %.1f answers a second", together,
			float64(encoded)/pictures, pictures*questions/took.Seconds())
	}
}

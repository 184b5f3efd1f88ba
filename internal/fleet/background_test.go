package fleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// Ensure that a worker whose background requests do not end answers the others.
func TestBackground(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	back := newEcho(4)
	let := make(chan struct{})
	back.trying = func(text string) error {
		if strings.HasPrefix(text, "behind") {
			<-let
		}
		return nil
	}
	runWorker(t, connect(t, s, quick), back, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	var all sync.WaitGroup
	for i := range 4 { // two run and two wait
		all.Go(func() {
			q := question(fmt.Sprint("behind ", i), nil)
			q.Background = true
			if _, err := answerOf(t.Context(), k, q); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 4 {
		if _, err := answerOf(t.Context(), k, question(fmt.Sprint("first ", i), nil)); err != nil {
			t.Error(err)
		}
	}
	close(let)
	all.Wait()
}

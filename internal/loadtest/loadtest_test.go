package loadtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// echo answers with a text made of the question; wrong answers differ each time.
func echo(wrong bool) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b struct {
			Stream   bool
			Messages []struct{ Content json.RawMessage }
			Restore  map[string]any
		}
		bad := json.NewDecoder(r.Body).Decode(&b) != nil || len(b.Messages) == 0 ||
			r.URL.Path != "/v1/chat/completions"
		if _, unknown := b.Restore["cache"]; bad || !unknown {
			http.Error(w, `{"error":{}}`, http.StatusBadRequest)
			return
		}
		if n.Add(1)%7 == 0 {
			w.Header().Set("Retry-After", "1")
			http.Error(w, `{"error":{}}`, http.StatusTooManyRequests)
			return
		}
		text := fmt.Sprint(len(b.Messages), len(b.Messages[0].Content), b.Restore["n_vis"])
		if wrong {
			text += fmt.Sprint(n.Load())
		}
		last := `"timings":{"encode_ms":3,"predicted_n":2,"ttft_ms":5},"restore":{"images":[{"cache":"none"}]}`
		if !b.Stream {
			fmt.Fprintf(w, `{"choices":[{"message":{"content":%q}}],%s}`, text, last)
			return
		}
		for _, piece := range strings.SplitAfter(text, " ") {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n: ping\n\n",
				piece)
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{}}],%s}\n\ndata: [DONE]\n\n", last)
	})
}

// Ensure that a run counts its outcomes, and finds answers that differ.
func TestRun(t *testing.T) {
	o := Options{Clients: 4, Requests: 60, Pictures: [][]byte{[]byte("a"), []byte("bc")},
		Questions: []string{"what?", "where is it?"}, Budgets: []int{64, 0},
		FollowUp: .3, Cancel: .1, Bad: .1, Whole: .3, Compare: true, Seed: 1}
	s := httptest.NewServer(echo(false))
	defer s.Close()
	o.URL = s.URL
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed+r.Wrong > 0 || r.Answers < 30 || r.Refused == 0 || r.Full == 0 ||
		r.Cancelled == 0 || r.Tokens != 2*r.Answers ||
		r.First.P50 <= 0 || r.First.P99 < r.First.P50 || r.Encoded != r.Answers {
		t.Errorf("got %+v", r)
	}
	liar := httptest.NewServer(echo(true))
	defer liar.Close()
	o.URL = liar.URL
	if r, err = Run(t.Context(), o); err != nil || r.Wrong == 0 || len(r.Errors) == 0 {
		t.Errorf("answers that differ: got %+v, %v", r, err)
	}
	broken := httptest.NewServer(http.NotFoundHandler())
	defer broken.Close()
	o.URL, o.Compare = broken.URL, false
	if r, err = Run(t.Context(), o); err != nil || r.Failed == 0 || r.Answers > 0 {
		t.Errorf("no server: got %+v, %v", r, err)
	}
	if _, err := Run(t.Context(), Options{Clients: 1}); err == nil {
		t.Error("a run without bounds is taken")
	}
}

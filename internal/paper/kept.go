package paper

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/files"
)

// measured are the pictures of a source for a measurement.
type measured struct {
	questions []*eval.Question
	of        []any // the inputs of the figures
}

// picturesOf returns the first n different pictures of a benchmark, each with its first question,
// or the reason why there are none. A limit of the source limits the questions.
func (d *draft) picturesOf(name string, n int) (*measured, string) {
	m := &measured{}
	if d.src.published {
		m.questions = make([]*eval.Question, min(n, published[name].pictures))
		return m, ""
	}
	b, why := d.src.Benchmark(name)
	if why != "" {
		return nil, d.miss(why)
	}
	d.ran++
	var err error
	if m.questions, err = pictures(b, n, d.src.Limit); err != nil {
		d.fail(err)
		return nil, err.Error()
	}
	m.of = []any{b.Name, b.Split, b.Protocol}
	for _, q := range m.questions {
		m.of = append(m.of, q.Key, q.Text, q.Images[0].Name)
	}
	return m, ""
}

// pictures returns the first n different pictures of a benchmark's first limit questions, each with
// its first question; a limit of 0 is none.
func pictures(b *eval.Benchmark, n, limit int) (out []*eval.Question, err error) {
	seen := map[string]bool{}
	for q, err := range b.Questions() {
		if err != nil {
			return nil, err
		}
		if limit > 0 && q.ID == limit {
			break
		}
		if len(q.Images) != 1 || seen[q.Images[0].Name] {
			continue
		}
		seen[q.Images[0].Name] = true
		if out = append(out, q); len(out) == n {
			break
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no question about a single picture", b.Name)
	}
	return out, nil
}

// machine describes the machine, for times.
func (mk *Maker) machine() map[string]any {
	host, _ := os.Hostname() // "" if unknown
	return map[string]any{"host": host, "threads": mk.Model.Info().Threads}
}

// kept makes figures with f, or reads the figures that f recorded earlier for the same inputs: of
// and the model. Counting adds left instead, and leaves out unchanged.
func (mk *Maker) kept(kind string, of []any, left time.Duration, out any, f func() error) error {
	key, err := json.Marshal([]any{mk.reduced(nil).Settings(), of})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(key)
	path := filepath.Join(mk.Records, kind+"-"+hex.EncodeToString(sum[:6])+".json")
	data, err := os.ReadFile(path)
	known := err == nil && json.Unmarshal(data, out) == nil
	if mk.work != nil {
		if known {
			left = 0
		}
		mk.work.add(left)
		return nil
	}
	if known {
		return nil
	}
	if err := f(); err != nil {
		return err
	}
	return files.WriteJSON(path, out, "")
}

// take is the time of that many questions under a setting, with their pictures.
func (mk *Maker) take(questions int, s Setting) time.Duration {
	if mk.rates == nil {
		return 0
	}
	_, how, _ := mk.resolve(s)
	seconds := float64(questions) * (mk.rates.Encode + mk.rates.question(how))
	return time.Duration(seconds * float64(time.Second))
}

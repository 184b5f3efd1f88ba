package scenebench

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/reduce"
)

// Scenes asks m the questions of total items from all visual tokens and under o, greedily. A
// picture is encoded once for both runs, and in each run read by the decoder once for all of its
// questions: every question opens a conversation of its own after the kept keys and values of the
// picture.
func Scenes(
	ctx context.Context, m *engine.Engine, items iter.Seq2[Item, error], total int,
	o methods.Options, run RunOptions,
) (*Result, error) {
	var (
		once     sync.Once
		resolved reduce.Resolved
		mu       sync.Mutex
		far      []float64
	)
	ask := func(ctx context.Context, pic *imageproc.Picture, questions []scene.Question) (full,
		reduced []Reply, err error) {
		encoded, err := m.Encode(ctx, []*imageproc.Picture{pic})
		if err != nil {
			return nil, nil, err
		}
		if full, _, err = askAll(ctx, m.NewConversation(methods.Options{}), encoded,
			questions); err != nil {
			return nil, nil, err
		}
		reduced, how, err := askAll(ctx, m.NewConversation(o), encoded, questions)
		if err != nil {
			return nil, nil, err
		}
		once.Do(func() { resolved = how })
		if run.Distance {
			d, err := lab.Hausdorff(ctx, m, encoded, o)
			if err != nil {
				return nil, nil, err
			}
			mu.Lock()
			far = append(far, d...)
			mu.Unlock()
		}
		return full, reduced, nil
	}
	r, err := Run(ctx, items, total, ask, run)
	if r == nil {
		return nil, err
	}
	r.Distance = mean(far)
	info := m.Info()
	r.Setup = map[string]any{
		"model": info.Name, "kernel": info.Kernel, "weights": info.Kept, "reduction": resolved,
		"interval_seed": run.Seed,
	}
	return r, err
}

// askAll asks each question in a conversation of its own about the same picture.
func askAll(
	ctx context.Context, c *engine.Conversation, encoded *engine.Encoded,
	questions []scene.Question,
) (replies []Reply, how reduce.Resolved, err error) {
	for _, q := range questions {
		c.Reset()
		ans, err := c.Ask(ctx, engine.Request{
			Prompt: q.Text, Encoded: encoded, MaxTokens: Enough(q),
		})
		if err != nil {
			return nil, how, fmt.Errorf("%q: %w", q.Text, err)
		}
		if ans.Finish == engine.FinishCancelled {
			return nil, how, context.Cause(ctx)
		}
		how = ans.Report.Options
		replies = append(replies, ReplyOf(ans.Text, ans.Finish == engine.FinishStop))
	}
	return replies, how, nil
}

// ReplyOf is a model's text as a reply. The space between "ASSISTANT:" and the answer belongs to
// the first token of some tokenizers.
func ReplyOf(text string, stopped bool) Reply {
	return Reply{Text: strings.TrimPrefix(text, " "), Stopped: stopped}
}

// mean is nil for no values. The sum runs over sorted values, so that it does not depend on which
// came first.
func mean(v []float64) *float64 {
	if len(v) == 0 {
		return nil
	}
	slices.Sort(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	sum /= float64(len(v))
	return &sum
}

// Enough is a number of tokens that the right answer fits into: a token is at least a byte, and the
// space ahead of the answer and the end are two more.
func Enough(q scene.Question) int { return len(q.Answer) + 2 }

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/pytext"
	"github.com/restore-vlm/restore/internal/web"
)

// Judge is a language model: it takes a prompt and returns its reply.
type Judge func(ctx context.Context, prompt string) (string, error)

// askJudge asks which option an answer means, as lmms-eval does: up to three times, until the same
// rules can read the reply. Otherwise it draws a letter with the harness's own seed.
func askJudge(
	ctx context.Context,
	judge Judge,
	row *mmbRow,
	answer string,
	random *twister,
) (string, error) {
	prompt := judgePrompt(row, answer)
	for range 3 {
		reply, err := judge(ctx, prompt)
		if err != nil {
			return "", err
		}
		if reply = pytext.Strip(reply); reply == "" {
			return "", errors.New("judge: an empty reply")
		}
		if letter := letterOfLMMS(reply, row.choices); letter != "" {
			return letter, nil
		}
	}
	return "ABCDE"[random.below(5):][:1], nil
}

// judgeTask is the harness's text, unchanged.
const judgeTask = "You are an AI assistant who will help me to match an answer with several " +
	"options of a single-choice question. You are provided with a question, several options, " +
	"and an answer, and you need to find which option is most similar to the answer. " +
	"If the meaning of all options are significantly different from the answer, output E. " +
	"Your should output a single uppercase character in A, B, C, D (if they are valid options), " +
	"and E. \n" +
	"Example 1: \nQuestion: What is the main object in image?\n" +
	"Options: A. teddy bear B. rabbit C. cat D. dog\nAnswer: a cute teddy bear\nYour output: A\n" +
	"Example 2: \nQuestion: What is the main object in image?\n" +
	"Options: A. teddy bear B. rabbit C. cat D. dog\nAnswer: Spider\nYour output: E\n"

// judgePrompt is the harness's prompt about one answer. The options end before the first null.
func judgePrompt(row *mmbRow, answer string) string {
	options := "There are several options: \n"
	for _, letter := range strings.Split("ABCD", "") {
		text, ok := row.cells[letter].(string)
		if !ok {
			break
		}
		options += letter + ". " + text + "\n"
	}
	return judgeTask + "Example 3: \nQuestion: " + row.question + "?\nOptions: " + options +
		"\nAnswer: " + answer + "\nYour output: "
}

// twister is Python's random number generator, MT19937, after random.seed of a small number.
// Matsumoto and Nishimura 1998.
type twister struct {
	state [624]uint32
	at    int
}

func newTwister(seed uint32) *twister {
	t := &twister{at: 624}
	s := &t.state
	s[0] = 19650218
	for i := 1; i < 624; i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	i := 1
	next := func() {
		if i++; i == 624 {
			s[0], i = s[623], 1
		}
	}
	for range 624 { // the key is the one word seed
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1664525) + seed
		next()
	}
	for range 623 {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1566083941) - uint32(i)
		next()
	}
	s[0] = 1 << 31
	return t
}

func (t *twister) uint32() uint32 {
	s := &t.state
	if t.at == 624 {
		for i := range s {
			y := s[i]&(1<<31) | s[(i+1)%624]&(1<<31-1)
			s[i] = s[(i+397)%624] ^ y>>1 ^ y&1*0x9908b0df
		}
		t.at = 0
	}
	y := s[t.at]
	t.at++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// below is random.randint(0, n-1) for n up to 8: it draws as many bits as n has until they are less
// than n.
func (t *twister) below(n uint32) uint32 {
	bits := 0
	for n>>bits > 0 {
		bits++
	}
	for {
		if v := t.uint32() >> (32 - bits); v < n {
			return v
		}
	}
}

// JudgeModel is lmms-eval's default judge.
const JudgeModel = "gpt-4o-2024-11-20"

// maxReply is the most bytes of a judge's reply.
const maxReply = 1 << 20

// NewJudge returns a judge on an OpenAI-compatible server. base is the address of the server, of
// its /v1, or of its /chat/completions. A failed request is tried five times.
func NewJudge(base, model, key string) (Judge, error) {
	address, err := web.Chat(base)
	if err != nil {
		return nil, fmt.Errorf("judge: %w", err)
	}
	client := &http.Client{Timeout: judgeTimeout}
	return func(ctx context.Context, prompt string) (reply string, err error) {
		body, err := json.Marshal(map[string]any{
			"model": model, "messages": []map[string]string{{"role": "user", "content": prompt}},
			"temperature": 0, "max_tokens": 256, "n": 1,
		})
		if err != nil {
			return "", err
		}
		for try := range judgeTries {
			if try > 0 {
				select {
				case <-ctx.Done():
					return "", context.Cause(ctx)
				case <-time.After(judgeWait):
				}
			}
			if reply, err = postJudge(ctx, client, address, key, body); err == nil &&
				pytext.Strip(reply) != "" {
				return reply, nil
			}
		}
		if err == nil {
			err = errors.New("empty replies")
		}
		return "", fmt.Errorf("judge %s: %w", address, err)
	}, nil
}

// The harness's limits for requests to its judge.
const (
	judgeTries   = 5
	judgeWait    = 3 * time.Second
	judgeTimeout = 30 * time.Second
)

func postJudge(
	ctx context.Context,
	client *http.Client,
	address, key string,
	body []byte,
) (string, error) {
	req, err := web.JSON(ctx, http.MethodPost, address, key, body)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s", resp.Status)
	}
	var out struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(data, &out); err != nil || len(out.Choices) == 0 {
		return "", fmt.Errorf("got %.80q, want a chat completion", data)
	}
	return out.Choices[0].Message.Content, nil
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
	api "github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// remoteFlags name a server that answers instead of a model in this process.
type remoteFlags struct{ url, key string }

func (f *remoteFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.url, "server", "",
		"ask the server at this `URL` (restore serve) instead of loading a model")
	fs.StringVar(&f.key, "api-key", "", "`key` of the server")
}

// remoteUse are the flags of run that a server supports, except the reduction's.
var remoteUse = []string{"server", "api-key", "image", "prompt", "system-prompt", "n-predict",
	"temp", "top-k", "top-p", "min-p", "seed", "json"}

// check refuses flags that do not work with --server.
func (f *remoteFlags) check(fs *pflag.FlagSet) (err error) {
	u, parseErr := url.Parse(f.url)
	switch {
	case f.url == "" && f.key != "":
		return usagef("--api-key: has no effect without --server")
	case f.url == "":
		return nil
	case parseErr != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return usagef("--server: got %q, want a URL as in http://127.0.0.1:8642", f.url)
	}
	fs.VisitAll(func(flag *pflag.Flag) {
		p, reduction := flag.Value.(*parameterFlag)
		if flag.Changed && !slices.Contains(remoteUse, flag.Name) &&
			(!reduction || p.Kind == reduce.File) && err == nil {
			err = usagef("--%s: has no effect with --server, got %s", flag.Name, flag.Value)
		}
	})
	return err
}

// remoteAnswer is a whole answer, or the last event of a stream.
type remoteAnswer struct {
	Model   string
	Choices []struct {
		Delta  struct{ Content string }
		Finish *string `json:"finish_reason"`
	}
	Timings *api.TimingFields
	Restore *api.Extension
	Error   *serverError

	text, finish string
}

// remoteDialogue is a dialogue with a server. The server keeps no dialogue: each question is sent
// with all turns before it, and the server's caches keep what it read.
type remoteDialogue struct {
	o    *runOptions
	a    *app
	outs *outputs
}

// set implements dialogue. The flags are read again for every question.
func (d *remoteDialogue) set(engine.Request) error { return d.o.server.check(d.o.reduction.fs) }

// restart implements dialogue.
func (d *remoteDialogue) restart() {}

// undo implements dialogue.
func (d *remoteDialogue) undo() {}

// describe implements dialogue. The server encodes the picture, and keeps it for the question.
func (d *remoteDialogue) describe(ctx context.Context, p shownPicture) (string, error) {
	shown := d.a.meter("reading " + p.name)
	defer shown.end()
	given, err := d.reduction()
	if err != nil {
		return "", err
	}
	resp, err := d.o.server.post(ctx, "/tokenize", object{
		"messages": []any{userMessage(&question{pictures: []shownPicture{p}})}, "restore": given,
	})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var counted remoteAnswer
	if err := json.NewDecoder(resp.Body).Decode(&counted); err != nil || counted.Restore == nil ||
		len(counted.Restore.Images) != 1 {
		return "", fmt.Errorf("%s: got no count of tokens, want one as restore serve gives",
			d.o.server.url)
	}
	i := &counted.Restore.Images[0]
	size := sizeLine(i.Width, i.Height, i.Tokens)
	if n := i.Kept + i.Merged; n < i.Tokens {
		size += fmt.Sprintf(", reduced to %d", n)
	}
	return size, nil
}

// ask implements dialogue.
func (d *remoteDialogue) ask(
	ctx context.Context, before []exchange, q *question,
) (*exchange, error) {
	body, err := d.body(before, q)
	if err != nil {
		return nil, err
	}
	if len(q.places) > 0 && q.places[len(q.places)-1] > 0 {
		d.a.note("--server: the chat template places pictures, perhaps not where <image> stands")
	}
	p := d.o.printer(d.a, d.outs)
	ans, err := d.o.server.ask(ctx, body, p.piece)
	p.end()
	turn := &exchange{question: q, answer: p.text.String()}
	switch {
	case err != nil && ctx.Err() != nil:
		if turn.answer == "" {
			turn = nil
		}
		return turn, errCut
	case err != nil:
		return nil, err
	}
	ans.cut(len(q.pictures))
	if d.o.json {
		err = writeJSON(d.outs.results(), ans.json(q.names()))
	} else {
		err = ans.table(d.a.err)
	}
	if err == nil && ctx.Err() != nil {
		err = errCut
	}
	return turn, err
}

type object = map[string]any

// body is the request for a question after the turns of before.
func (d *remoteDialogue) body(before []exchange, q *question) (object, error) {
	var messages []any
	if q.system != "" {
		messages = append(messages, object{"role": "system", "content": q.system})
	}
	for i := range before {
		messages = append(messages, userMessage(before[i].question), object{
			"role": "assistant", "content": strings.TrimPrefix(before[i].answer, " "),
		})
	}
	given, err := d.reduction()
	if err != nil {
		return nil, err
	}
	s := &d.o.sampling
	b := object{
		"messages": append(messages, userMessage(q)), "stream": true,
		"max_tokens": d.o.maxTokens, "temperature": s.Temp, "restore": given,
	}
	if s.Temp > 0 {
		b["top_k"], b["top_p"], b["min_p"], b["seed"] = s.TopK, s.TopP, s.MinP, s.Seed
	}
	return b, nil
}

// reduction is the reduction that the flags ask of the server.
func (d *remoteDialogue) reduction() (methods.Given, error) {
	typed, env, err := d.o.reduction.sources()
	if err != nil {
		return nil, err
	}
	given := methods.Merge(typed, env)
	if given["base"] == "random" {
		given["seed"] = d.o.sampling.Seed
	}
	return given, nil
}

// userMessage is a question with its pictures.
func userMessage(q *question) object {
	var parts []any
	from := 0
	text := func(to int) {
		if to > from {
			parts = append(parts, object{"type": "text", "text": q.prompt[from:to]})
			from = to
		}
	}
	for i, p := range q.pictures {
		if q.places != nil {
			text(q.places[i])
		}
		parts = append(parts, object{"type": "image_url", "image_url": object{
			"url": "data:;base64," + base64.StdEncoding.EncodeToString(p.file),
		}})
	}
	text(len(q.prompt))
	return object{"role": "user", "content": parts}
}

// serverError is an error that a server reported.
type serverError struct {
	Message, Code string
	PromptTokens  int `json:"n_prompt_tokens"`
	Positions     int `json:"n_positions"`
	Context       int `json:"n_ctx"`

	from string
}

func (e *serverError) Error() string { return e.from + ": " + e.Message }

// Unwrap returns the error of this program that the server met, if there is one.
func (e *serverError) Unwrap() error {
	if e.Code != "context_length_exceeded" {
		return nil
	}
	return &errs.ContextError{
		PromptTokens: e.PromptTokens, Positions: e.Positions, Context: e.Context,
	}
}

// post sends a request. The reply is not an error.
func (f *remoteFlags) post(ctx context.Context, path string, body object) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	at := strings.TrimSuffix(strings.TrimSuffix(f.url, "/"), "/v1")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if f.key != "" {
		req.Header.Set("Authorization", "Bearer "+f.key)
	}
	resp, err := http.DefaultClient.Do(req)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("--server: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	var ans remoteAnswer
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxTextBytes)) // use the part that arrived
	if json.Unmarshal(text, &ans) != nil || ans.Error == nil {
		return nil, fmt.Errorf("%s: got status %s, want an answer as restore serve gives", f.url,
			resp.Status)
	}
	ans.Error.from = f.url
	return nil, ans.Error
}

// ask sends a question and passes on the answer's text as it arrives.
func (f *remoteFlags) ask(
	ctx context.Context, body object, onText func(string),
) (*remoteAnswer, error) {
	resp, err := f.post(ctx, "/v1/chat/completions", body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return readEvents(resp.Body, f.url, onText)
}

// readEvents reads the stream of an answer.
func readEvents(r io.Reader, from string, onText func(string)) (*remoteAnswer, error) {
	var whole *remoteAnswer
	var text strings.Builder
	finish := ""
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTextBytes)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			if whole == nil || whole.Timings == nil || whole.Restore == nil {
				return nil, fmt.Errorf(
					"%s: got an answer without timings, want one as restore serve gives", from)
			}
			whole.text, whole.finish = text.String(), finish
			return whole, nil
		}
		ans := new(remoteAnswer)
		if err := json.Unmarshal([]byte(data), ans); err != nil {
			return nil, fmt.Errorf("%s: an event that is no JSON: %w", from, err)
		}
		if ans.Error != nil {
			ans.Error.from = from
			return nil, ans.Error
		}
		for _, c := range ans.Choices {
			if c.Finish != nil {
				finish = *c.Finish
			}
			if c.Delta.Content != "" {
				text.WriteString(c.Delta.Content)
				onText(c.Delta.Content)
			}
		}
		whole = ans
	}
	return nil, fmt.Errorf("%s: the answer ended too early: %w", from,
		errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// cut leaves only the last n pictures in the report: the last question shows them.
func (r *remoteAnswer) cut(n int) {
	all := r.Restore.Images
	r.Restore.Images, r.Restore.Visual = all[max(0, len(all)-n):], api.VisualTokens{}
	for _, p := range r.Restore.Images {
		r.Restore.Visual.Add(p.Tokens, p.Kept, p.Merged, p.Mean)
	}
}

// table writes a report of the server's answer.
func (r *remoteAnswer) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "model\t%s\n", r.Model)
	for i, p := range r.Restore.Images {
		label := "visual tokens"
		if len(r.Restore.Images) > 1 {
			label = fmt.Sprintf("picture %d", i+1)
		}
		fmt.Fprintf(t, "%s\t%s, cache %s\n", label, tokensLine(p.Tokens, p.Kept, p.Merged), p.Cache)
	}
	if len(r.Restore.Images) > 0 {
		fmt.Fprintf(t, "method\t%s\n", r.Restore.Images[0].Method)
	}
	x := r.Timings
	fmt.Fprintf(t, "prompt\t%d tokens", x.PromptN+x.CacheN)
	if x.CacheN > 0 {
		fmt.Fprintf(t, ", %d of them cached", x.CacheN)
	}
	fmt.Fprintf(t, "\ntime\tqueue %.3g ms, prepare %.3g ms, encode %.3g ms, prefill %.3g "+
		"ms, first token %.3g ms\n",
		x.Queue, x.Prepare, x.Encode, x.Prompt, x.TTFT)
	fmt.Fprintf(t, "answer\t%d tokens, %.1f tokens/s%s\n", x.PredictedN, x.PerSecond,
		finishNote(r.finish))
	return t.Flush()
}

// json is the object of --json, without fields that only the server knows.
func (r *remoteAnswer) json(names []string) answerJSON {
	x, v := r.Timings, &r.Restore.Visual
	j := answerJSON{Model: r.Model, Answer: r.text, Finish: r.finish, Method: "none",
		VisualTokens: visualJSON{VisualTokens: *v},
		Images:       []visualJSON{},
		PromptTokens: x.PromptN + x.CacheN, CachedTokens: x.CacheN, GeneratedTokens: x.PredictedN,
		TokensPerSecond: x.PerSecond,
		Times: map[string]float64{
			"prepare": x.Prepare, "encode": x.Encode, "select": x.Select, "merge": x.Merge,
			"prefill": x.Prompt, "first_token": x.TTFT, "decode": x.Predicted}}
	for i, p := range r.Restore.Images {
		one := visualJSON{File: names[i]}
		one.Add(p.Tokens, p.Kept, p.Merged, p.Mean)
		j.Images = append(j.Images, one)
		if i == 0 {
			j.Method, j.Parameters = p.Method, p.Parameters
		}
	}
	return j
}

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

	api "github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/imageproc"
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
func (f *remoteFlags) check(fs *pflag.FlagSet, talk bool) (err error) {
	u, parseErr := url.Parse(f.url)
	switch {
	case f.url == "" && f.key != "":
		return usagef("--api-key: has no effect without --server")
	case f.url == "":
		return nil
	case parseErr != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return usagef("--server: got %q, want a URL as in http://127.0.0.1:8642", f.url)
	case talk:
		return usagef("--server: got %s without a question, want --prompt: conversations "+
			"are held with a model here", f.url)
	}
	fs.Visit(func(flag *pflag.Flag) {
		p, reduction := flag.Value.(*parameterFlag)
		if !slices.Contains(remoteUse, flag.Name) && (!reduction || p.Kind == reduce.File) &&
			err == nil {
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
	Error   *struct{ Message string }

	text, finish string
}

// remote asks the server of --server.
func (o *runOptions) remote(ctx context.Context, a *app) error {
	outs := a.outputs(slices.Concat(o.question.inputs(), o.reduction.files())...)
	defer outs.discard()
	body, names, err := o.remoteBody(a)
	if err != nil {
		return err
	}
	out, last := outs.results(), byte('\n')
	ans, err := o.server.ask(ctx, body, func(s string) {
		if !o.json {
			io.WriteString(out, s)
			last = s[len(s)-1]
		}
	})
	if last != '\n' {
		fmt.Fprintln(out)
	}
	switch {
	case ctx.Err() != nil:
		return cutShort("run: interrupted, the answer is not complete")
	case err != nil:
		return err
	case o.json:
		return writeJSON(out, ans.json(names))
	}
	return ans.table(a.err)
}

// remoteBody returns the request's body, and the pictures' names.
func (o *runOptions) remoteBody(a *app) (body []byte, names []string, err error) {
	q := question{names: slices.Clone(o.question.images)}
	if q.prompt, err = o.question.text(a, "prompt", o.question.prompt); err != nil {
		return nil, nil, err
	}
	if q.system, err = o.question.text(a, "system-prompt", o.question.system); err != nil {
		return nil, nil, err
	}
	if err := q.place(len(q.names), false); err != nil {
		return nil, nil, err
	}
	type object = map[string]any
	var parts, messages []any
	from := 0
	text := func(to int) {
		if to > from {
			parts = append(parts, object{"type": "text", "text": q.prompt[from:to]})
			from = to
		}
	}
	for i, path := range q.names {
		if q.places != nil {
			text(q.places[i])
		}
		q.names[i] = stdinName(path)
		data, err := a.read(path, maxPictureBytes, imageproc.Recognise)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, object{"type": "image_url",
			"image_url": object{"url": "data:;base64," + base64.StdEncoding.EncodeToString(data)}})
	}
	text(len(q.prompt))
	if q.system != "" {
		messages = append(messages, object{"role": "system", "content": q.system})
	}
	messages = append(messages, object{"role": "user", "content": parts})
	typed, env, err := o.reduction.sources()
	if err != nil {
		return nil, nil, err
	}
	given := methods.Merge(typed, env)
	if given["base"] == "random" {
		given["seed"] = o.sampling.Seed
	}
	b := object{
		"messages": messages, "stream": true, "max_tokens": o.maxTokens,
		"temperature": o.sampling.Temp,
	}
	if len(given) > 0 {
		b["restore"] = given
	}
	if o.sampling.Temp > 0 {
		b["top_k"], b["top_p"], b["min_p"], b["seed"] = o.sampling.TopK, o.sampling.TopP,
			o.sampling.MinP, o.sampling.Seed
	}
	body, err = json.Marshal(b)
	return body, q.names, err
}

// ask sends a question and passes on the answer's text as it arrives.
func (f *remoteFlags) ask(
	ctx context.Context, body []byte, onText func(string),
) (*remoteAnswer, error) {
	at := strings.TrimSuffix(strings.TrimSuffix(f.url, "/"), "/v1")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"/v1/chat/completions",
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if f.key != "" {
		req.Header.Set("Authorization", "Bearer "+f.key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("--server: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var ans remoteAnswer
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxTextBytes)) // use the part that arrived
		if json.Unmarshal(text, &ans) != nil || ans.Error == nil {
			return nil, fmt.Errorf("%s: got status %s, want an answer as restore serve gives", at,
				resp.Status)
		}
		return nil, fmt.Errorf("%s: %s", at, ans.Error.Message)
	}
	return readEvents(resp.Body, at, onText)
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
			return nil, fmt.Errorf("%s: %s", from, ans.Error.Message)
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
		VisualTokens: visualJSON{Before: v.Before, Kept: v.Kept, Merged: v.Merged},
		Images:       []visualJSON{},
		PromptTokens: x.PromptN + x.CacheN, CachedTokens: x.CacheN, GeneratedTokens: x.PredictedN,
		TokensPerSecond: x.PerSecond,
		Times: map[string]float64{
			"prepare": x.Prepare, "encode": x.Encode, "select": x.Select, "merge": x.Merge,
			"prefill": x.Prompt, "first_token": x.TTFT, "decode": x.Predicted}}
	for i, p := range r.Restore.Images {
		j.Images = append(j.Images, visualJSON{
			File: names[i], Before: p.Tokens, Kept: p.Kept, Merged: p.Merged,
		})
		if i == 0 {
			j.Method, j.Parameters = p.Method, p.Parameters
		}
	}
	return j
}

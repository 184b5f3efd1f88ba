// Command ollamago checks restore serve with Ollama's own Go client. It lists the models, shows
// one, asks it questions, and stops at the first wrong reply.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/ollama/ollama/api"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: ollamago URL, from the folder of this file")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "ollamago:", err)
		os.Exit(1)
	}
	fmt.Println("all is well")
}

func run(at string) error {
	u, err := url.Parse(at)
	if err != nil {
		return err
	}
	picture, err := os.ReadFile("../../../docs/scene.png")
	if err != nil {
		return err
	}
	ctx, c := context.Background(), api.NewClient(u, http.DefaultClient)
	list, err := c.List(ctx)
	if err != nil || len(list.Models) != 1 || len(list.Models[0].Digest) != 64 {
		return fmt.Errorf("list: got %+v, %w", list, err)
	}
	model := list.Models[0].Name
	running, err := c.ListRunning(ctx)
	if err != nil || len(running.Models) != 1 || running.Models[0].ContextLength == 0 {
		return fmt.Errorf("ps: got %+v, %w", running, err)
	}
	show, err := c.Show(ctx, &api.ShowRequest{Model: model})
	if err != nil || show.Template == "" || len(show.Capabilities) == 0 {
		return fmt.Errorf("show: got %+v, %w", show, err)
	}
	if v, err := c.Version(ctx); err != nil || v == "" {
		return fmt.Errorf("version: got %q, %w", v, err)
	}
	whole := false
	var texts []string
	for _, stream := range []*bool{nil, &whole} {
		text, ended := "", false
		err := c.Chat(ctx, &api.ChatRequest{Model: model, Stream: stream, Messages: []api.Message{
			{Role: "user", Content: "Describe the image.", Images: []api.ImageData{picture}},
		}}, func(r api.ChatResponse) error {
			text += r.Message.Content
			ended = r.Done && r.DoneReason == "stop" && r.EvalCount > 0 && r.PromptEvalCount > 64
			return nil
		})
		if err != nil || !ended || text == "" {
			return fmt.Errorf("chat: got %q, ended %t, %w", text, ended, err)
		}
		texts = append(texts, text)
		text = ""
		err = c.Generate(
			ctx,
			&api.GenerateRequest{Model: model, Stream: stream, Prompt: "Describe the image.",
				Images: []api.ImageData{picture}},
			func(r api.GenerateResponse) error {
				text += r.Response
				return nil
			},
		)
		if err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		texts = append(texts, text)
	}
	for _, text := range texts {
		if text != texts[0] {
			return fmt.Errorf("answers differ: %q", texts)
		}
	}
	answer := ""
	err = c.Generate(ctx, &api.GenerateRequest{Model: model, Prompt: "Describe", Stream: &whole,
		Format: json.RawMessage(
			`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`),
		Options: map[string]any{
			"temperature": 1,
			"seed":        3,
			"num_predict": 100,
		}}, func(r api.GenerateResponse) error {
		answer += r.Response
		return nil
	})
	var value struct{ N *int }
	if err != nil || json.Unmarshal([]byte(answer), &value) != nil || value.N == nil {
		return fmt.Errorf("format: got %q, %w", answer, err)
	}
	err = c.Chat(
		ctx,
		&api.ChatRequest{Model: "nothing", Messages: []api.Message{{Role: "user", Content: "?"}}},
		func(api.ChatResponse) error { return nil },
	)
	var status api.StatusError
	if !errors.As(err, &status) || status.StatusCode != http.StatusNotFound ||
		!strings.Contains(err.Error(), "not found") {
		return fmt.Errorf("unknown model: got %w", err)
	}
	return nil
}

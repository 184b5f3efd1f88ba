//go:build clients

package local_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/local"
	"github.com/restore-vlm/restore/internal/server"
)

// Ensure that openai-go works with every route unchanged.
func TestOpenAIGo(t *testing.T) {
	h := start(t, func(_ *engine.Options, _ *local.Options, o *server.Options) {
		o.Keys = []string{"sesame"}
	})
	c := openai.NewClient(option.WithBaseURL(h.url+"/v1"), option.WithAPIKey("sesame"),
		option.WithMaxRetries(0))
	ctx := t.Context()
	models, err := c.Models.List(ctx)
	if err != nil || models.Data[0].ID != "builtin" ||
		!strings.Contains(models.Data[0].RawJSON(), `"encoder":{"type":"stored"}`) {
		t.Fatalf("models: got %+v, %v", models, err)
	}
	params := openai.ChatCompletionNewParams{
		Model: "builtin", Messages: []openai.ChatCompletionMessageParamUnion{
			openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
				openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{
					URL: dataURL(scene(t)), Detail: "auto",
				}),
				openai.TextContentPart("Describe the image."),
			})}}
	a, err := c.Chat.Completions.New(ctx, params)
	if err != nil || a.Choices[0].Message.Content != description ||
		a.Choices[0].FinishReason != "stop" {
		t.Fatalf("chat: got %+v, %v", a, err)
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	s := c.Chat.Completions.NewStreaming(ctx, params)
	acc := openai.ChatCompletionAccumulator{}
	for s.Next() {
		acc.AddChunk(s.Current())
	}
	if s.Err() != nil || acc.Choices[0].Message.Content != description ||
		acc.Usage.PromptTokens != a.Usage.PromptTokens {
		t.Fatalf("stream: got %+v, %v", acc, s.Err())
	}
	p, err := c.Completions.New(ctx, openai.CompletionNewParams{
		Model: "builtin", Prompt: openai.CompletionNewParamsPromptUnion{
			OfString: openai.String("Hello"),
		}, MaxTokens: openai.Int(3),
	})
	if err != nil || p.Object != "text_completion" {
		t.Fatalf("completion: got %+v, %v", p, err)
	}
	ask := responses.ResponseNewParams{
		Model: "builtin", Input: responses.ResponseNewParamsInputUnion{
			OfString: openai.String("Hello"),
		}, MaxOutputTokens: openai.Int(4),
	}
	r, err := c.Responses.New(ctx, ask)
	if err != nil || r.Object != "response" ||
		r.Usage.TotalTokens != r.Usage.InputTokens+r.Usage.OutputTokens {
		t.Fatalf("response: got %+v, %v", r, err)
	}
	events := c.Responses.NewStreaming(ctx, ask)
	last := ""
	for events.Next() {
		last = events.Current().Type
	}
	if events.Err() != nil || last != "response.completed" && last != "response.incomplete" {
		t.Fatalf("response's stream: got %s, %v", last, events.Err())
	}
	params.Temperature, params.StreamOptions = openai.Float(3),
		openai.ChatCompletionStreamOptionsParam{}
	var refused *openai.Error
	if _, err := c.Chat.Completions.New(ctx, params); !errors.As(err, &refused) ||
		refused.StatusCode != 400 || refused.Param != "temperature" ||
		refused.Code != "decimal_above_max_value" {
		t.Errorf("refusal: got %v, %q %q %q", err, refused.Code, refused.Param, refused.RawJSON())
	}
	stranger := openai.NewClient(option.WithBaseURL(h.url+"/v1"), option.WithAPIKey("wrong"),
		option.WithMaxRetries(0))
	if _, err := stranger.Models.List(ctx); !errors.As(err, &refused) || refused.StatusCode != 401 {
		t.Errorf("wrong key: got %v", err)
	}
}

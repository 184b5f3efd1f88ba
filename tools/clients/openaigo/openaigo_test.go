// Package openaigo tests the server with OpenAI's library for Go.
package openaigo

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"github.com/restore-vlm/restore/tools/clients/program"
)

func TestMain(m *testing.M) { program.Main(m) }

// description is the embedded model's answer about the drawn scene.
const description = "A red cross at the top left, a red cross at the center, a green star " +
	"at the middle right, a pink cross at the bottom right and the number 22."

// Ensure that openai-go works with every route unchanged.
func TestOpenAIGo(t *testing.T) {
	url := program.Serve(t, "--api-key", "sesame") + "/v1"
	scene, err := os.ReadFile(filepath.Join(program.Root, "docs/scene.png"))
	if err != nil {
		t.Fatal(err)
	}
	c := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("sesame"),
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
					URL:    "data:image/png;base64," + base64.StdEncoding.EncodeToString(scene),
					Detail: "auto",
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
	stranger := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("wrong"),
		option.WithMaxRetries(0))
	if _, err := stranger.Models.List(ctx); !errors.As(err, &refused) || refused.StatusCode != 401 {
		t.Errorf("wrong key: got %v", err)
	}
}

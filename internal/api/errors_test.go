package api

import (
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
)

// Ensure that a prompt beyond the context is refused in the words by which clients know it. LiteLLM
// 1.55 and 1.110 and LangChain.js 1.5 look for the sentence. With openai 3.57, langchain-openai 1.7
// looks for "prompt is too long".
func TestContextWords(t *testing.T) {
	for _, e := range []*errs.ContextError{
		{PromptTokens: 5058, Positions: 5058, Context: 4096},
		{PromptTokens: 591, Positions: 4687, Context: 4096},
		{Bytes: 2000004, MostBytes: 262144, Context: 4096},
	} {
		got := new(Call).Error(e)
		const want = "This model's maximum context length is 4096 "
		if got.Code != "context_length_exceeded" || !strings.Contains(got.Message, want) ||
			!strings.Contains(got.Message, "prompt is too long") {
			t.Errorf("got %s %q, want %q", got.Code, got.Message, want)
		}
	}
}

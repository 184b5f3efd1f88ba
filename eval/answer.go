package eval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Answerer answers questions: [Service] a model here or elsewhere, [Server] any server that
// speaks OpenAI's protocol.
type Answerer interface {
	// Answer answers questions that are all about the same pictures, each separately and greedily,
	// with at most its MaxTokens tokens. It calls done once for each answer, in any order, one call
	// at a time. If done returns an error, Answer ends.
	Answer(ctx context.Context, questions []*Question, done func(i int, a Answer) error) error

	// Settings returns everything except the questions that answers depend on, as JSON values:
	// model, types of weights, reduction. Runs with equal settings share their records.
	Settings() map[string]any
}

// Answer is the answer to a question.
type Answer struct {
	Text   string `json:"answer"`
	Finish string `json:"finish"` // stop or length
	Usage
	Seconds Seconds `json:"seconds"`

	// Reduction is the first picture's, as the JSON of [reduce.Resolved]; nil if not known.
	Reduction json.RawMessage `json:"reduction,omitempty"`
	// Distance is how far the reduced picture is from the whole one, where it was measured.
	Distance *float64 `json:"distance,omitempty"`
}

// finishLength is the Finish of an answer that was cut at its limit.
const finishLength = "length"

// Usage counts tokens. Counts that a server does not report are 0.
type Usage struct {
	Before int `json:"before"` // visual tokens of the pictures
	After  int `json:"after"`  // those that a layer of the decoder read, on average, merged ones included
	Prompt int `json:"prompt_tokens"`
	Cached int `json:"cached_tokens"` // of Prompt, those whose keys and values were cached
	Tokens int `json:"tokens"`        // of the answer
}

// Seconds are the times of an answer's stages. Work that was done for an earlier question about the
// same picture is 0.
type Seconds struct {
	Prepare    float64 `json:"prepare"`
	Encode     float64 `json:"encode"`
	Select     float64 `json:"select"`
	Merge      float64 `json:"merge"`
	Prefill    float64 `json:"prefill"`
	FirstToken float64 `json:"first_token"`
	Decode     float64 `json:"decode"`
}

// hashOf returns a short name of settings, equal for equal settings.
func hashOf(settings map[string]any) (string, error) {
	data, err := json.Marshal(settings) // the keys are sorted
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

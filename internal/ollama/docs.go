package ollama

import (
	"maps"

	"github.com/restore-vlm/restore/internal/api"
)

// docs describe the calls, by path.
func docs() map[string]api.Doc {
	const common = `{
	"model": {"type": ["string", "null"]},
	"stream": {"type": ["boolean", "null"]},
	"format": {"anyOf": [{"enum": ["json", "", null]}, {"type": "object"}]},
	"options": {"type": ["object", "null"], "properties": {
		"num_predict": {"type": ["integer", "null"], "minimum": -2},
		"num_ctx": {"type": ["integer", "null"], "minimum": 1},
		"mirostat": {"enum": [0, null]}}},
	"keep_alive": true,
	"think": {"enum": [false, null]},
	"tools": {"type": ["array", "null"], "maxItems": 0},
	"logprobs": {"type": ["boolean", "null"]},
	"top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20}
}`
	const images = `{"images": {"type": ["array", "null"], "items": {"type": "string"}}}`
	body := func(more ...string) map[string]any {
		s := api.Object(nil, append(more, common, api.ExtensionSchema())...)
		options := s["properties"].(map[string]any)["options"].(map[string]any)
		for _, part := range []string{api.SamplingSchema, api.PenaltiesSchema} {
			maps.Copy(options["properties"].(map[string]any), api.ParseSchema(part))
		}
		return s
	}
	return map[string]api.Doc{
		"/api/chat": {Summary: "Answer a chat about pictures, as Ollama does", Body: body(`{
	"messages": {"type": ["array", "null"], "maxItems": 1024, "items": {"type": "object",
		"required": ["role"], "properties": {"role": {"enum": ["system", "user", "assistant"]},
			"content": {"type": ["string", "null"]},
			"images": {"type": ["array", "null"], "items": {"type": "string"}}}}}}`),
			Reply: line{}, Chunk: line{}},
		"/api/generate": {Summary: "Answer a question about pictures, as Ollama does",
			Body: body(images, `{
	"prompt": {"type": ["string", "null"]}, "system": {"type": ["string", "null"]},
	"raw": {"type": ["boolean", "null"]}}`),
			Reply: line{}, Chunk: line{}},
	}
}

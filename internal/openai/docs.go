package openai

import "github.com/restore-vlm/restore/internal/api"

// docs describe the calls, by path.
func docs() map[string]api.Doc {
	return map[string]api.Doc{
		"/v1/chat/completions": {Summary: "Answer a chat about pictures", Body: chatBody(),
			Reply: reply[chatChoice]{}, Chunk: reply[chunkChoice]{}},
		"/v1/completions": {Summary: "Continue a text", Body: completionBody(),
			Reply: reply[completionChoice]{}, Chunk: reply[completionChoice]{}},
		"/v1/responses": {Summary: "Answer a dialogue about pictures, without storing it",
			Body: responseBody(), Reply: response{}, Chunk: map[string]any{}},
	}
}

// Properties that several bodies share.
const (
	commonProperties = `{
	"model": {"type": ["string", "null"]},
	"stream": {"type": ["boolean", "null"]},
	"stream_options": {"type": ["object", "null"], "properties": {
		"include_usage": {"type": ["boolean", "null"]},
		"include_obfuscation": {"type": ["boolean", "null"]}}},
	"user": true, "metadata": true, "store": true, "service_tier": true, "safety_identifier": true,
	"prompt_cache_key": true, "prompt_cache_retention": true, "parallel_tool_calls": true,
	"tools": {"type": ["array", "null"], "maxItems": 0},
	"tool_choice": {"enum": ["none", "auto", null]},
	"function_call": {"enum": ["none", "auto", null]}
}`
	choicesProperties = `{
	"n": {"type": ["integer", "null"], "minimum": 1, "maximum": 16},
	"best_of": {"type": ["integer", "null"], "minimum": 1, "maximum": 16},
	"max_tokens": {"type": ["integer", "null"], "minimum": 1},
	"max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
	"response_format": {"type": ["object", "null"], "required": ["type"], "properties": {
		"type": {"enum": ["text", "json_object", "json_schema"]},
		"schema": {"type": ["object", "boolean", "null"]},
		"json_schema": {"type": "object", "required": ["name", "schema"], "properties": {
			"name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
			"schema": {"type": ["object", "boolean"]}, "strict": {"type": ["boolean", "null"]},
			"description": {"type": ["string", "null"]}}}}}
}`
)

func chatBody() map[string]any {
	return api.Object([]string{"messages"}, commonProperties, choicesProperties,
		api.SamplingSchema, api.PenaltiesSchema, api.ExtensionSchema(), `{
	"messages": {"type": "array", "minItems": 1, "maxItems": 1024, "items": {"type": "object",
		"required": ["role", "content"], "properties": {
			"role": {"enum": ["system", "developer", "user", "assistant"]},
			"content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [
				{"type": "object", "required": ["type", "text"], "properties": {
					"type": {"const": "text"}, "text": {"type": "string"}}},
				{"type": "object", "required": ["type", "image_url"], "properties": {
					"type": {"const": "image_url"}, "image_url": {"anyOf": [{"type": "string"},
						{"type": "object", "required": ["url"], "properties": {
							"url": {"type": "string"},
							"detail": {"enum": ["auto", "low", "high", "original", null]},
							"restore": {"type": ["object", "null"]}}}]}}}]}}]}}}},
	"logprobs": {"type": ["boolean", "null"]},
	"top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20}
}`)
}

func completionBody() map[string]any {
	return api.Object([]string{"prompt"}, commonProperties, choicesProperties,
		api.SamplingSchema, api.PenaltiesSchema, api.ExtensionSchema(), `{
	"prompt": {"anyOf": [{"type": "string"},
		{"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
		{"type": "array", "minItems": 1, "maxItems": 1, "items": {"anyOf": [{"type": "string"},
			{"type": "array", "items": {"type": "integer", "minimum": 0}}]}}]},
	"logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 5}
}`)
}

func responseBody() map[string]any {
	return api.Object([]string{"input"}, commonProperties, api.SamplingSchema, api.PenaltiesSchema,
		api.ExtensionSchema(), `{
	"input": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1,
		"maxItems": 1024, "items": {"type": "object", "required": ["role", "content"],
			"properties": {"type": {"enum": ["message", null]},
				"role": {"enum": ["system", "developer", "user", "assistant"]},
				"content": {"anyOf": [{"type": "string"}, {"type": "array", "items":
					{"type": "object", "required": ["type"], "properties": {
						"type": {"enum": ["input_text", "output_text", "input_image"]},
						"text": {"type": "string"}, "image_url": {"type": "string"}}}}]}}}}]},
	"instructions": {"type": ["string", "null"]},
	"max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
	"include": {"type": ["array", "null"], "items": {"enum": ["message.output_text.logprobs"]}},
	"top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
	"text": {"type": ["object", "null"], "properties": {"format": {"type": ["object", "null"],
		"required": ["type"], "properties": {
			"type": {"enum": ["text", "json_object", "json_schema"]}, "name": {"type": "string"},
			"schema": {"type": ["object", "boolean"]}, "strict": {"type": ["boolean", "null"]}}}}},
	"truncation": {"enum": ["disabled", null]},
	"reasoning": {"type": ["object", "null"], "properties": {"effort": {"enum": ["none", null]}}},
	"background": {"enum": [false, null]}
}`)
}

const errorSchema = `{"error": {"type": "object", "properties": {
	"message": {"type": "string"}, "type": {"type": "string"},
	"param": {"type": ["string", "null"]}, "code": {"type": "string"},
	"n_prompt_tokens": {"type": "integer"}, "n_positions": {"type": "integer"},
	"n_ctx": {"type": "integer"}}, "required": ["message", "type", "param", "code"],
	"additionalProperties": false}}`

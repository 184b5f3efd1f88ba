package anthropic

import "github.com/restore-vlm/restore/internal/api"

// docs describe the calls, by path.
func docs() map[string]api.Doc {
	return map[string]api.Doc{
		"/v1/messages": {Summary: "Answer a chat about pictures, as Anthropic's API does",
			Body: api.Object([]string{"messages", "max_tokens"}, properties, api.ExtensionSchema(),
				api.SamplingSchema, calls), Reply: message{}, Chunk: event{}},
		CountPath: {Summary: "Count the tokens of a chat, as Anthropic's API does",
			Body:  api.Object([]string{"messages"}, properties, api.ExtensionSchema()),
			Reply: Count{}},
	}
}

const (
	properties = `{
	"model": {"type": ["string", "null"]},
	"messages": {"type": "array", "minItems": 1, "maxItems": 1024, "items": {"type": "object",
		"required": ["role", "content"], "properties": {"role": {"enum": ["user", "assistant"]},
			"content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [
				{"type": "object", "required": ["type", "text"], "properties": {
					"type": {"const": "text"}, "text": {"type": "string"}}},
				{"type": "object", "required": ["type", "source"], "properties": {
					"type": {"const": "image"}, "restore": {"type": ["object", "null"]},
					"source": {"anyOf": [
						{"type": "object", "required": ["type", "data"], "properties": {
							"type": {"const": "base64"}, "data": {"type": "string"},
							"media_type": {"type": "string"}}},
						{"type": "object", "required": ["type", "url"], "properties": {
							"type": {"const": "url"}, "url": {"type": "string"}}}]}}}]}}]}}}},
	"system": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {
		"type": "object", "required": ["type", "text"], "properties": {
			"type": {"const": "text"}, "text": {"type": "string"}}}}]},
	"output_config": {"type": ["object", "null"], "properties": {
		"format": {"type": ["object", "null"], "required": ["type", "schema"], "properties": {
			"type": {"const": "json_schema"}, "schema": {"type": ["object", "boolean"]}}}}},
	"thinking": {"type": ["object", "null"], "required": ["type"], "properties": {
		"type": {"const": "disabled"}}},
	"tool_choice": {"type": ["object", "null"], "required": ["type"], "properties": {
		"type": {"enum": ["auto", "any", "tool", "none"]}, "name": {"type": "string"}}},
	"tools": {"type": ["array", "null"], "items": {"type": "object",
		"required": ["name", "input_schema"], "properties": {
			"name": {"type": "string"}, "type": {"enum": ["custom", null]},
			"input_schema": {"type": "object"}}}},
	"metadata": true, "service_tier": true, "cache_control": true
}`
	calls = `{
	"max_tokens": {"type": "integer", "minimum": 1},
	"stream": {"type": ["boolean", "null"]},
	"stop_sequences": {"type": ["array", "null"], "maxItems": 16,
		"items": {"type": "string", "minLength": 1}}
}`
	errorSchema = `{"type": {"const": "error"}, "request_id": {"type": "string"},
	"error": {"type": "object", "properties": {
	"type": {"type": "string"}, "message": {"type": "string"}, "code": {"type": "string"}},
	"required": ["type", "message", "code"], "additionalProperties": false}}`
)

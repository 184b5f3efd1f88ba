package server

import (
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/protocols"
)

// infoDocs describe the routes that tell about the server and its model, by path.
func infoDocs() map[string]api.Doc {
	tokens := api.Object(nil, `{
	"model": {"type": ["string", "null"]},
	"content": {"type": "string"}, "prompt": {"type": "string"},
	"messages": {"type": ["array", "null"], "items": {"type": "object"}},
	"add_special": {"type": ["boolean", "null"]}, "parse_special": {"type": ["boolean", "null"]},
	"with_pieces": {"type": ["boolean", "null"]}}`, api.ExtensionSchema())
	ready := api.Doc{Summary: "Ask whether requests are answered", Reply: status{}}
	return map[string]api.Doc{
		"/v1/models":      {Summary: "List the models", Reply: modelList{}},
		"/v1/models/{id}": {Summary: "Describe a model", Reply: modelObject{}},
		"/tokenize": {Summary: "Tokens of a text, or the number of tokens of a chat", Body: tokens,
			Reply: textTokens{}},
		"/detokenize": {Summary: "Text of tokens", Body: api.Object([]string{"tokens"}, `{
	"model": {"type": ["string", "null"]},
	"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}`), Reply: content{}},
		"/api/tags": {Summary: "List the models, as Ollama does", Reply: ollamaModels{}},
		"/api/ps":   {Summary: "List the models in memory, as Ollama does", Reply: ollamaRunning{}},
		"/api/show": {Summary: "Describe a model, as Ollama does", Body: api.Object(nil, `{
	"model": {"type": ["string", "null"]}, "name": {"type": ["string", "null"]}}`),
			Reply: ollamaShown{}},
		"/api/version":   {Summary: "Version, as Ollama tells it", Reply: ollamaVersion{}},
		"/health":        ready,
		"/v1/health":     ready,
		"/live":          {Summary: "Ask whether the process lives", Reply: status{}},
		"/version":       {Summary: "Versions", Reply: versions{}},
		"/openapi.json":  {Summary: "This document", Reply: map[string]any{}},
		"/metrics":       {Summary: "Metrics in Prometheus's text format"},
		"/":              {Summary: "The page"},
		"/assets/{name}": {Summary: "Files of the page"},
	}
}

// openAPI answers with the OpenAPI document of the routes that are on. Its replies
// have the types that the handlers encode.
func (s *Server) openAPI(x *exchange) { x.json(http.StatusOK, s.document()) }

type object = map[string]any

func (s *Server) document() object {
	docs := infoDocs()
	maps.Copy(docs, protocols.Docs())
	paths := object{}
	maps.Copy(docs, jobDocs())
	for at, doc := range docs {
		method, path := described(at, &doc)
		r := s.routes[path]
		if path == "/assets/{name}" {
			r = s.routes["/assets/"+pageAssets()[0]]
		}
		if r == nil {
			continue
		}
		all, ok := paths[path].(object)
		if !ok {
			all = object{}
			paths[path] = all
		}
		maps.Copy(all, operations(method, path, r, &doc))
	}
	secure := []any{object{"bearer": []string{}}, object{"key": []string{}}}
	if len(s.o.Keys) == 0 {
		secure = append(secure, object{})
	}
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "restore serve", "version": s.o.Version,
			"description": "Answers questions about pictures with reduced visual tokens, as " +
				"OpenAI's, Ollama's and Anthropic's API do."},
		"paths": paths, "security": secure,
		"components": object{
			"securitySchemes": object{
				"bearer": object{"type": "http", "scheme": "bearer"},
				"key":    object{"type": "apiKey", "in": "header", "name": "X-Api-Key"},
			},
			"schemas": errorSchemas(),
		},
	}
}

// described reads a key of the documents: a path, whose method depends on the body, or METHOD PATH.
func described(at string, doc *api.Doc) (method, path string) {
	if method, path, found := strings.Cut(at, " "); found {
		return strings.ToLower(method), path
	}
	if doc.Body != nil {
		return "post", at
	}
	return "get", at
}

// errorSchemas are the schemas of errors, by the names of their protocols.
func errorSchemas() object {
	all := object{}
	for _, p := range protocols.All {
		properties := api.ParseSchema(p.ErrorSchema)
		all[p.Name+"Error"] = object{"type": "object", "properties": properties,
			"required": slices.Sorted(maps.Keys(properties)), "additionalProperties": false}
	}
	return all
}

// operations describes a method of a route; HEAD comes with GET.
func operations(method, path string, r *route, doc *api.Doc) object {
	protocol := protocols.Of(path)
	failed := protocol.Name + "Error"
	name := strings.Trim(strings.Map(func(c rune) rune {
		if c == '/' || c == '.' || c == '{' || c == '}' {
			return '_'
		}
		return c
	}, path), "_")
	ok := object{"description": doc.Summary}
	types := object{}
	if doc.Reply != nil {
		types["application/json"] = object{"schema": replySchema(doc)}
	}
	if doc.Chunk != nil {
		types[protocol.Stream] = object{"schema": object{"anyOf": []any{
			api.SchemaOf(reflect.TypeOf(doc.Chunk)),
			object{"$ref": "#/components/schemas/" + failed},
		}}}
	}
	if len(types) > 0 {
		ok["content"] = types
	}
	o := object{"summary": doc.Summary, "responses": object{"200": ok,
		"default": object{"description": "An error", "content": object{"application/json": object{
			"schema": object{"$ref": "#/components/schemas/" + failed}}}}}}
	if doc.Body != nil {
		kind := "application/json"
		if doc.Form {
			kind = "multipart/form-data"
		}
		o["requestBody"] = object{"required": true, "content": object{
			kind: object{"schema": doc.Body}}}
	}
	o["operationId"] = method + "_" + name
	if r.open {
		o["security"] = []any{}
	}
	var parameters []any
	if _, rest, found := strings.Cut(path, "{"); found {
		name, _, _ := strings.Cut(rest, "}")
		parameters = append(parameters, object{"name": name, "in": "path", "required": true,
			"schema": object{"type": "string"}})
	}
	for _, name := range doc.Query {
		parameters = append(parameters, object{"name": name, "in": "query",
			"schema": object{"type": "string"}})
	}
	if parameters != nil {
		o["parameters"] = parameters
	}
	all := object{method: o}
	if method == "get" {
		head := maps.Clone(o)
		head["operationId"] = "head_" + name
		head["responses"] = object{"200": object{"description": doc.Summary},
			"default": object{"description": "An error"}}
		all["head"] = head
	}
	return all
}

// replySchema is the schema of a whole reply. A call of Ollama may also be about no question, and
// /tokenize about a chat.
func replySchema(doc *api.Doc) object {
	of := api.SchemaOf(reflect.TypeOf(doc.Reply))
	if _, ok := doc.Reply.(textTokens); ok {
		return object{"anyOf": []any{of, api.SchemaOf(reflect.TypeFor[chatTokens]())}}
	}
	return of
}

package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Doc describes a call for the OpenAPI document.
type Doc struct {
	Summary string
	Body    map[string]any // JSON schema
	Form    bool           // the body is multipart/form-data
	Query   []string       // names of parameters
	Reply   any            // a value of the reply's type
	Chunk   any            // a value of the type of a stream's messages; nil: no stream
}

// ParseSchema reads a JSON schema of this program.
func ParseSchema(text string) map[string]any {
	var s map[string]any
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(fmt.Sprintf("api.ParseSchema: %v in %s", err, text))
	}
	return s
}

// Object returns the schema of a body with these properties, {NAME: SCHEMA, …} in JSON in several
// parts. Further fields are allowed.
func Object(required []string, properties ...string) map[string]any {
	all := map[string]any{}
	for _, part := range properties {
		for name, s := range ParseSchema(part) {
			all[name] = s
		}
	}
	s := map[string]any{"type": "object", "properties": all}
	if required != nil {
		s["required"] = required
	}
	return s
}

// ExtensionSchema is the schema of the object "restore" of a body, as a property.
func ExtensionSchema() string {
	fields := map[string]any{"cache": map[string]any{"type": "boolean"},
		"report": map[string]any{"enum": []string{"counts", "groups"}},
		"cache_salt": map[string]any{
			"type": "string", "minLength": 1, "maxLength": maxSalt,
		}}
	for _, name := range parameterFields() {
		fields[name] = true
	}
	text, err := json.Marshal(map[string]any{"restore": map[string]any{
		"type": []string{"object", "null"}, "properties": fields, "additionalProperties": false,
		"description": "how pictures are reduced: the flags of `restore run`, with _ for -"}})
	if err != nil {
		panic(err) // not reached: the values are plain
	}
	return string(text)
}

// SamplingSchema has the properties of sampling.
const SamplingSchema = `{
	"temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
	"top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
	"top_k": {"type": ["integer", "null"], "minimum": 0},
	"min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
	"seed": {"type": ["integer", "null"]},
	"ignore_eos": {"type": ["boolean", "null"]}
}`

// PenaltiesSchema has the properties of penalties, and "stop".
const PenaltiesSchema = `{
	"frequency_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2},
	"presence_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2},
	"repeat_penalty": {"type": ["number", "null"], "minimum": 0.1, "maximum": 10},
	"repetition_penalty": {"type": ["number", "null"], "minimum": 0.1, "maximum": 10},
	"repeat_last_n": {"type": ["integer", "null"], "minimum": -1},
	"logit_bias": {"type": ["object", "array", "null"], "maxProperties": 1024, "maxItems": 1024,
		"additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
	"stop": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"},
		{"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1}}]}
}`

// SchemaOf returns the JSON schema of what encoding/json makes of a type.
func SchemaOf(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t.Kind() != reflect.Struct && t.Implements(reflect.TypeFor[json.Marshaler]()),
		reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()):
		return map[string]any{} // any value
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Pointer:
		return map[string]any{
			"anyOf": []any{SchemaOf(t.Elem()), map[string]any{"type": "null"}},
		}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": SchemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{
			"type": "object", "additionalProperties": SchemaOf(t.Elem()),
		}
	case reflect.Interface:
		return map[string]any{}
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		addFields(t, properties, &required, false)
		return map[string]any{"type": "object", "properties": properties, "required": required,
			"additionalProperties": false}
	}
	return map[string]any{"type": "integer"}
}

// addFields adds the fields of a struct, and of those embedded in it; optional says that all may be
// absent.
func addFields(t reflect.Type, properties map[string]any, required *[]string, optional bool) {
	for f := range t.Fields() {
		tag, ok := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case f.Anonymous && !ok:
			of, pointer := f.Type, f.Type.Kind() == reflect.Pointer
			if pointer {
				of = of.Elem()
			}
			addFields(of, properties, required, optional || pointer)
			continue
		case !f.IsExported() || tag == "-":
			continue
		case name == "":
			name = f.Name
		}
		of := f.Type
		if options == "omitempty" && of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		properties[name] = SchemaOf(of)
		if options != "omitempty" && !optional {
			*required = append(*required, name)
		}
	}
}

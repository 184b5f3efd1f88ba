package chat

import (
	"sync"

	"github.com/restore-vlm/restore/internal/jinja"
)

// llavaV1 is the conversation of LLaVA-1.5's own code (style "two separators"): a system sentence,
// then "USER: …" and "ASSISTANT: …", with a space after each even turn and </s> after each odd one.
// Separators follow the position, labels the role. A turn's pictures stand before its text, each on
// a separate line. An empty turn is only its label.
const llavaV1 = `
{%- set v = namespace(system=DEFAULT_SYSTEM, i=0) -%}
{%- set turns = namespace(list=messages) -%}
{%- if messages[0].role == 'system' -%}
  {%- set v.system = messages[0].content | map(attribute='text', default='') | join(' ') -%}
  {%- set turns.list = messages[1:] -%}
{%- endif -%}
{{ v.system ~ ' ' }}
{%- for m in turns.list -%}
  {%- if m.role not in ('user', 'assistant') -%}
    {{ raise_exception('got role ' ~ m.role ~ ', want system first, then user and assistant') }}
  {%- endif -%}
  {%- set images = m.content | selectattr('type', 'equalto', 'image') | list -%}
  {%- set text = m.content | selectattr('text', 'defined') | map(attribute='text') | join(' ') -%}
  {%- if images -%}
    {%- set text = '<image>\n' * (images | length) ~ text.replace('<image>', '').strip() -%}
  {%- endif -%}
  {{ 'USER:' if m.role == 'user' else 'ASSISTANT:' }}
  {%- if text -%}
    {{ ' ' ~ text ~ (' ' if loop.index0 is even else '</s>') }}
  {%- endif -%}
{%- endfor -%}
{{ 'ASSISTANT:' if add_generation_prompt }}`

var parseLLaVAv1 = sync.OnceValue(func() *Template {
	const system = "A chat between a curious human and an artificial intelligence assistant. " +
		"The assistant gives helpful, detailed, and polite answers to the human's questions."
	t, err := conversation(system)
	if err != nil {
		panic(err) // the text above is a constant
	}
	return t
})

// LLaVAv1 returns the conversation of style v1 of LLaVA's own code. A system message at the start
// replaces its sentence. The stop string is </s>.
func LLaVAv1() *Template { return parseLLaVAv1() }

// Fallback returns the conversation for checkpoints without a template, and its name.
func Fallback() (t *Template, name string) {
	return LLaVAv1(), "LLaVA's v1 conversation (built in)"
}

// conversation is llavaV1 with a system sentence.
func conversation(system string) (*Template, error) {
	t, err := jinja.Parse(llavaV1)
	if err != nil {
		return nil, err
	}
	return &Template{t: t, values: map[string]any{"DEFAULT_SYSTEM": jinja.Plain(system)}}, nil
}

package llava

import (
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
)

// The conversations of LLaVA's own code (llava/conversation.py) as chat templates. A turn's
// pictures stand before its text, each on a separate line. PLACE is replaced by the text of a
// picture.
const (
	// opening removes a system message from the list and joins the texts and pictures of a turn.
	opening = `
{%- set v = namespace(system=SYSTEM) -%}
{%- set turns = namespace(list=messages) -%}
{%- if messages[0].role == 'system' -%}
  {%- set v.system = messages[0].content | map(attribute='text', default='') | join(' ') -%}
  {%- set turns.list = messages[1:] -%}
{%- endif -%}
{%- macro said(m) -%}
  {%- set images = m.content | selectattr('type', 'equalto', 'image') | list -%}
  {%- set text = m.content | selectattr('text', 'defined') | map(attribute='text') | join(' ') -%}
  {%- if images -%}{{ 'PLACE\n' * (images | length) ~ text.replace('<image>', '').strip() }}{%- else -%}{{ text }}{%- endif -%}
{%- endmacro -%}
`
	// v1 is conv_vicuna_v1: the separators " " and "</s>" alternate, labels are the roles.
	v1 = `
{{- v.system ~ ' ' -}}
{%- for m in turns.list -%}
  {%- if m.role not in ('user', 'assistant') -%}
    {{- raise_exception('got role ' ~ m.role ~ ', want system first, then user and assistant') -}}
  {%- endif -%}
  {%- set text = said(m) -%}
  {{- 'USER:' if m.role == 'user' else 'ASSISTANT:' -}}
  {%- if text -%}{{- ' ' ~ text ~ (' ' if loop.index0 is even else '</s>') -}}{%- endif -%}
{%- endfor -%}
{{- 'ASSISTANT:' if add_generation_prompt -}}`
	// instruct is conv_mistral_instruct, or conv_llava_llama_2 if LATER is <s>.
	instruct = `
{%- for m in turns.list -%}
  {%- if m.role not in ('user', 'assistant') -%}
    {{- raise_exception('got role ' ~ m.role ~ ', want system first, then user and assistant') -}}
  {%- endif -%}
  {%- set text = said(m) -%}
  {%- if loop.first and v.system -%}{%- set text = '<<SYS>>\n' ~ v.system ~ '\n<</SYS>>\n\n' ~ text -%}{%- endif -%}
  {%- if text and loop.index0 is even -%}
    {{- ('' if loop.first else 'LATER') ~ '[INST] ' ~ text ~ ' [/INST]' -}}
  {%- elif text -%}
    {{- ' ' ~ text ~ ' </s>' -}}
  {%- endif -%}
{%- endfor -%}`
	// chatml is conv_chatml_direct, or conv_qwen if END ends a line.
	chatml = `
{{- '<|im_start|>system\n' ~ v.system ~ 'END' -}}
{%- for m in turns.list -%}
  {%- if m.role not in ('user', 'assistant') -%}
    {{- raise_exception('got role ' ~ m.role ~ ', want system first, then user and assistant') -}}
  {%- endif -%}
  {{- '<|im_start|>' ~ m.role ~ '\n' ~ said(m) ~ 'END' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt -}}`
)

// template returns the conversation that the original code selects by the model's name:
// mistral_instruct for Mistral, llava_llama_2 for Llama 2, chatml_direct for 1.6 with 34B,
// otherwise v1. OneVision's is the qwen_1_5 of its examples.
func (c *config) template(name string) checkpoint.Part {
	place := "<image>"
	if c.StartEnd {
		place = "<im_start><image><im_end>"
	}
	version, system, body := "v1", "A chat between a curious user and an artificial "+
		"intelligence assistant. "+
		"The assistant gives helpful, detailed, and polite answers to the user's questions.", v1
	named := strings.ToLower(name + " " + c.Path)
	switch {
	case c.decoder == "mistral":
		version, system = "mistral_instruct", ""
		body = strings.ReplaceAll(instruct, "LATER", "")
	case c.oneVision():
		version, system = "qwen_1_5", "You are a helpful assistant."
		body = strings.ReplaceAll(chatml, "END", `<|im_end|>\n`)
	case strings.Contains(named, "llama-2") || strings.Contains(named, "llama_2"):
		version, system = "llava_llama_2", "You are a helpful language and vision assistant. "+
			"You are able to understand the visual content that the user provides, "+
			"and assist the user with a variety of tasks using natural language."
		body = strings.ReplaceAll(instruct, "LATER", "<s>")
	case strings.Contains(named, "34b"):
		version, system = "chatml_direct", "Answer the questions."
		body = strings.ReplaceAll(chatml, "END", "<|im_end|>")
	}
	text := `{%- set SYSTEM = "` + system + `" -%}` +
		strings.ReplaceAll(opening, "PLACE", place) + body
	return checkpoint.Part{
		Data: []byte(text), From: "LLaVA's " + version + " conversation (built in)",
	}
}

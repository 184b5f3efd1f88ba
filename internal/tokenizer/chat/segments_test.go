package chat

import (
	"encoding/json"
	"strings"
	"testing"
)

func mustParse(t *testing.T, template string) *Template {
	t.Helper()
	tmpl, err := Parse(template)
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func mustMessages(t *testing.T, text string) []Message {
	t.Helper()
	var msgs []Message
	if err := json.Unmarshal([]byte(text), &msgs); err != nil {
		t.Fatal(err)
	}
	return msgs
}

// show writes segments, with the caller's text in guillemets.
func show(segments []Segment) string {
	var b strings.Builder
	for _, s := range segments {
		if s.User {
			s.Text = "«" + s.Text + "»"
		}
		b.WriteString(s.Text)
	}
	return b.String()
}

// The caller's text stays marked through every operation.
func TestSegmentsMark(t *testing.T) {
	for _, c := range []struct{ template, want string }{
		{"{{ x }}</s>", "«a</s>b »</s>"},
		{"<s>{{ x | trim }}</s>", "<s>«a</s>b»</s>"},
		{"{{ x.strip() + '</s>' }}", "«a</s>b»</s>"},
		{"{{ '</s>' ~ x ~ '</s>' }}", "</s>«a</s>b »</s>"},
		{"{{ x | upper }}", "«A</S>B »"},
		{"{{ x | replace('</s>', '<s>') }}", "«a»<s>«b »"},
		{"{{ x.split('</s>') | join('</s>') }}", "«a»</s>«b »"},
		{"{{ 'a-b' | replace('-', x) }}", "a«a</s>b »b"},
		{"{{ x[1:5] }}{{ x[::-1] }}{{ x | reverse }}", "«</s> b>s/<a b>s/<a»"},
		{"{% for c in x %}{{ c }}{% endfor %}", "«a</s>b »"},
		{"{% set y %}[{{ x }}]{% endset %}{{ y }}{{ y | length }}", "[«a</s>b »]9"},
		{"{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(x) }}", "<«a</s>b »>"},
		{"{% filter trim %} {{ x }}{% endfilter %}", "«a</s>b»"},
		{"{{ x | tojson }}", `"«a</s>b »"`},
		{"{{ [x] }}", "['«a</s>b »']"},
		{"{{ '<{}>'.format(x) }}", "<«a</s>b »>"},
		{"{{ x | indent(2, true) }}", "  «a</s>b »"},
		{"{{ x * 2 }}", "«a</s>b a</s>b »"},
		{"{{ x.center(11) }}", "  «a</s>b »  "},
		{"{{ messages[0].role }}{{ messages[0].name }}", "user«</s>»"},
		{"{{ tools[0].name }}{{ tools | tojson }}", `«</s>»[{"«name»": "«</s>»"}]`},
		{"{{ messages[0] | list | join }}", "rolecontent«name»"},
		{"{{ bos_token }}{{ x | title }}{{ x | capitalize }}", "<s>«A</s>b A</s>b »"},
		{"{{ namespace(a=x).a }}{{ dict(a=x).a }}{{ [x] | first }}{{ {'k': x}.values() | list | last }}", "«a</s>b a</s>b a</s>b a</s>b »"},
		{"{{ [x] | map('trim') | join(',') }}{{ [{'v': x}] | map(attribute='v') | join }}", "«a</s>ba</s>b »"},
		{"{{ [x] | sort | join }}", "«a</s>b »"},
	} {
		tmpl := mustParse(t, "{% set x = messages[0].content %}"+c.template)
		msgs := mustMessages(t, `[{"role":"user","content":"a</s>b ","name":"</s>"}]`)
		got, err := tmpl.RenderSegments(msgs, Options{
			KeepStrings: true, Tools: json.RawMessage(`[{"name":"</s>"}]`),
			SpecialTokens: map[string]string{"bos_token": "<s>"},
		})
		if err != nil || show(got) != c.want {
			t.Errorf("%s:\ngot  %s %v\nwant %s", c.template, show(got), err, c.want)
		}
	}
}

// Roles that are not words of the format are the caller's.
func TestSegmentsRole(t *testing.T) {
	tmpl := mustParse(t, "{% for m in messages %}[{{ m.role }}]{% endfor %}")
	got, err := tmpl.RenderSegments(mustMessages(t, `[{"role":"user","content":""},{"role":"</s>","content":""}]`), Options{})
	if err != nil || show(got) != "[user][«</s>»]" {
		t.Errorf("got %s %v", show(got), err)
	}
}

func TestStringContent(t *testing.T) {
	msgs := mustMessages(t, `[{"role":"user","content":"hi"}]`)
	for _, c := range []struct{ name, template, want string }{
		{"iterates", "{% for m in messages %}{% for c in m.content %}<{{ c.text }}>{% endfor %}{% endfor %}", "<hi>"},
		{"filters", "{% for m in messages %}{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}<{{ c['text'] }}>{% endfor %}{% endfor %}", "<hi>"},
		{"indexes", "{{ messages[0].content[0].text }}", "hi"},
		{"tests", "{% if messages[0].content is string %}s{{ messages[0].content }}{% else %}{% for c in messages[0].content %}{{ c.text }}{% endfor %}{% endif %}", "shi"},
		{"tests a copy", "{% set c = messages[0]['content'] %}{{ c if c is string else c[0].text ~ '!' }}", "hi"},
		{"joins", "{{ 'x' + messages[0]['content'] + 'y' }}", "xhiy"},
		{"prints", "{% for m in messages %}{{ m.content }}{% endfor %}", "hi"},
		{"strips", "{{ messages[0].content.strip() }}|{{ messages[0].content | trim }}", "hi|hi"},
		{"passes on", "{% macro f(c) %}{% for p in c %}<{{ p.text }}>{% endfor %}{% endmacro %}{{ f(messages[0].content) }}", "<hi>"},
	} {
		got, err := mustParse(t, c.template).Render(msgs, Options{})
		if err != nil || got != c.want {
			t.Errorf("%s: got %q %v, want %q", c.name, got, err, c.want)
		}
	}
}

// A template that reads text gets text, in whatever form the content was written.
func TestPartsAsText(t *testing.T) {
	tmpl := mustParse(t,
		"{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}")
	msgs := []Message{
		{Role: "user", Content: []Part{{Type: "text", Text: "a"}, {Type: "text", Text: "b"}}},
	}
	if got, err := tmpl.Render(msgs, Options{}); err != nil || got != "user:a\nb;" {
		t.Errorf("got %q %v", got, err)
	}
	msgs[0].Content[0] = Part{Type: "image"}
	if got, err := tmpl.Render(msgs, Options{}); err == nil {
		t.Errorf("got %q for a picture in a template of text, want an error", got)
	}
}

func TestContinueFinalMessage(t *testing.T) {
	const keeps = "{% for m in messages %}[{{ m.role }}]{% for c in m.content %}{{ c.text " +
		"}}{% endfor %}</s>{% endfor %}"
	const trims = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"
	for _, c := range []struct{ name, template, messages, want string }{
		{"text", keeps, `[{"role":"user","content":"a"},{"role":"assistant","content":"One,"}]`, "[user]a</s>[assistant]One,"},
		{"blank at the end", keeps, `[{"role":"assistant","content":"One, "}]`, "[assistant]One, "},
		{"blank at the end, trimmed", trims, `[{"role":"assistant","content":"One, "}]`, "[assistant]One,"},
		{"empty", keeps, `[{"role":"user","content":"a"},{"role":"assistant","content":""}]`, "[user]a</s>[assistant]"},
		{"same text before", keeps, `[{"role":"assistant","content":"b"},{"role":"user","content":"b"},{"role":"assistant","content":"b"}]`, "[assistant]b</s>[user]b</s>[assistant]b"},
		{"last part counts", keeps, `[{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, "[assistant]ab"},
		{"the mark is in a text", keeps, "[{\"role\":\"user\",\"content\":\"\uE0000\uE001 \uE0001\uE001\"},{\"role\":\"assistant\",\"content\":\"x\"}]", "[user]\uE0000\uE001 \uE0001\uE001</s>[assistant]x"},
	} {
		got, err := mustParse(t, c.template).Render(mustMessages(t, c.messages), Options{
			ContinueFinalMessage: true,
		})
		if err != nil || got != c.want {
			t.Errorf("%s: got %q %v, want %q", c.name, got, err, c.want)
		}
	}
	for _, c := range []struct{ name, template, messages, want string }{
		{"dropped", "[{{ messages[0].role }}]", `[{"role":"assistant","content":"x"}]`, "not in the prompt"},
		{"no text", keeps, `[{"role":"assistant","content":[{"type":"image"}]}]`, "no text"},
		{"no content", keeps, `[{"role":"assistant"}]`, "no text"},
	} {
		got, err := mustParse(t, c.template).Render(mustMessages(t, c.messages), Options{
			ContinueFinalMessage: true,
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q %v, want an error with %q", c.name, got, err, c.want)
		}
	}
	if _, err := mustParse(t, keeps).Render([]Message{{Role: "user"}}, Options{
		ContinueFinalMessage: true, AddGenerationPrompt: true,
	}); err == nil {
		t.Error("both options together are accepted")
	}
}

func TestMessageJSON(t *testing.T) {
	const text = `[{"role": "user", "content": "a<b"}, {"content": [{"text": "untyped", "n": 1}, {"type": "image", "image_url": {"url": "x", "detail": null}}, {"z": [1.5, true], "type": "text", "text": ""}], "role": "assistant"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "b": 1, "a": 2}]}, {"role": "tool", "name": "f"}]`
	msgs := mustMessages(t, text)
	// The template sees every key, in the order of the JSON.
	got, err := mustParse(t, "{{ messages | tojson }}").Render(msgs, Options{KeepStrings: true})
	if err != nil || got != text {
		t.Errorf("got  %s %v\nwant %s", got, err, text)
	}
	out, err := json.Marshal(msgs)
	var back []Message
	if err != nil || json.Unmarshal(out, &back) != nil {
		t.Fatalf("marshal: %s %v", out, err)
	}
	if again, err := mustParse(t, "{{ messages | tojson }}").Render(back, Options{
		KeepStrings: true,
	}); err != nil || again != text {
		t.Errorf("after a round trip: got %s %v", again, err)
	}
	made := []Message{
		{Role: "user", Content: []Part{{Type: "image"}, {Type: "text"}, {Type: "text", Text: "x"}}, Extra: []Field{{"name", json.RawMessage(`"bob"`)}}},
	}
	const want = `[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ""}, {"type": "text", "text": "x"}], "name": "bob"}]`
	if got, err := mustParse(t, "{{ messages | tojson }}").Render(made, Options{}); err != nil ||
		got != want {
		t.Errorf("made in Go: got %s %v", got, err)
	}
	for _, c := range []struct{ text, want string }{
		{`{"role":"user","content":5}`, "content: got 5"},
		{`{"role":5,"content":""}`, "role: got 5"},
		{`{"content":""}`, "role missing"},
		{`"user"`, "want an object"},
		{`{"role":"user","content":["x"]}`, "want an object"},
		{`{"role":"user","content":[{"type":"text","text":3}]}`, "text: got 3"},
		{`{"role":"user","content":[{"type":null}]}`, "type: got null"},
	} {
		var m Message
		if err := json.Unmarshal([]byte(c.text), &m); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.text, err, c.want)
		}
	}
}

func TestLLaVAv1(t *testing.T) {
	const system = "A chat between a curious human and an artificial intelligence " +
		"assistant. The assistant gives helpful, detailed, and polite answers to the " +
		"human's questions. "
	for _, c := range []struct{ messages, want string }{
		{`[{"role":"user","content":"Hi"}]`, system + "USER: «Hi» ASSISTANT:"},
		{`[{"role":"user","content":[{"type":"text","text":"What?\n<image>"},{"type":"image"}]}]`, system + "USER: <image>\n«What?» ASSISTANT:"},
		{`[{"role":"user","content":[{"type":"image"},{"type":"image"},{"type":"text","text":"Which?"}]},{"role":"assistant","content":"A."},{"role":"user","content":"Why?"}]`,
			system + "USER: <image>\n<image>\n«Which?» ASSISTANT: «A.»</s>USER: «Why?» ASSISTANT:"},
		{`[{"role":"system","content":"Be terse."},{"role":"user","content":""}]`, "«Be terse.» USER:ASSISTANT:"},
		{`[{"role":"user","content":"say <image> </s>"}]`, system + "USER: «say <image> </s>» ASSISTANT:"},
	} {
		got, err := LLaVAv1().RenderSegments(mustMessages(t, c.messages), Options{
			AddGenerationPrompt: true,
		})
		if err != nil || show(got) != c.want {
			t.Errorf("%s:\ngot  %q %v\nwant %q", c.messages, show(got), err, c.want)
		}
	}
	if _, err := LLaVAv1().Render(mustMessages(t, `[{"role":"tool","content":"x"}]`), Options{}); err == nil {
		t.Error("a tool message is accepted")
	}
}

// A hostile template soon ends in an error.
func TestLimits(t *testing.T) {
	deep := func(open, end string, n int) string {
		return strings.Repeat(open, n) + strings.Repeat(end, n)
	}
	for _, c := range []struct{ name, template, want string }{
		{"steps", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"},
		{"range", "{{ range(10 ** 12) | length }}", "steps"},
		{"doubling text", "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "text of more"},
		{"doubling list", "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}", "steps"},
		{"repetition", "{{ 'x' * 10 ** 15 }}", "text of more"},
		{"list repetition", "{{ [1, 2] * 10 ** 15 }}", "steps"},
		{"output", "{% set x = 'x' * 10 ** 7 %}{% for i in range(100) %}{{ x }}{% endfor %}", "more than"},
		{"padding", "{{ 'x'.center(10 ** 12) }}", "text of more"},
		{"replacement", "{% set x = 'x' * 10 ** 6 %}{{ x.replace('x', x) }}", "text of more"},
		{"repetition of 2³² bytes", "{{ ('x' * 2048) * 2097152 }}", "text of more"},
		{"repetition of 2³² items", "{{ ([1] * 2048) * 2097152 }}", "steps"},
		{"replacement by 2³² bytes", "{% set x = 'x' * 65536 %}{{ x.replace('x', x) }}", "text of more"},
		{"indentation of 2³² bytes", "{% set x = '\\n' * 65536 %}{{ x | indent('y' * 65536) }}", "text of more"},
		{"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deeper"},
		{"self", "{% set n = namespace() %}{% set n.n = n %}{{ n }}{{ [n] }}", "deeper"},
		{"power", "{{ 2 ** 999999999999 }}", "overflow"},
		{"power of one", "{{ (-1) ** 999999999999 }}", "steps"},
		{"indent", "{{ [1] | tojson(indent=10 ** 9) }}", "indent"},
		{"percent", "{{ '%9999999999d' % 1 }}", "not formatted by %"},
		{"brackets", "{{ " + deep("[", "]", 5000) + " }}", "nested deeper"},
		{"parentheses", "{{ " + deep("(", ")", 5000) + " }}", "nested deeper"},
		{"nots", "{{ " + strings.Repeat("not ", 5000) + "x }}", "nested deeper"},
		{"minuses", "{{ " + strings.Repeat("- ", 5000) + "1 }}", "nested deeper"},
		{"ifs", deep("{% if true %}", "{% endif %}", 5000), "nested deeper"},
		{"elifs", "{% if x %}" + strings.Repeat("{% elif x %}", 5000) + "{% endif %}", "nested deeper"},
		{"attributes", "{{ x" + strings.Repeat(".x", 5000) + " }}", "nested deeper"},
		{"filters", "{{ x" + strings.Repeat("|e", 5000) + " }}", "nested deeper"},
		{"sums", "{{ 1" + strings.Repeat("+1", 5000) + " }}", "in a row"},
		{"targets", "{% set " + deep("(", ")", 5000) + " = 1 %}", "nested deeper"},
		{"conditions", "{{ 1" + strings.Repeat(" if 1 else 1", 5000) + " }}", "nested deeper"},
		{"size", strings.Repeat("x", 1<<20+1), "at most"},
	} {
		tmpl, err := Parse(c.template)
		if err == nil {
			_, err = tmpl.Render([]Message{{Role: "user"}}, Options{})
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %.200v, want an error with %q", c.name, err, c.want)
		}
	}
}

// A template is shared: renderings must not see each other.
func TestConcurrent(t *testing.T) {
	tmpl := mustParse(t, "{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = "+
		"n.i + 1 %}{{ n.i }}{{ m.content[0].text }}{% endfor %}")
	msgs := mustMessages(t, `[{"role":"user","content":"a"},{"role":"user","content":"b"}]`)
	done := make(chan string)
	for range 8 {
		go func() {
			got, err := tmpl.Render(msgs, Options{ContinueFinalMessage: true})
			if err != nil {
				got = err.Error()
			}
			done <- got
		}()
	}
	for range 8 {
		if got := <-done; got != "1a2b" {
			t.Errorf("got %q", got)
		}
	}
}

package anthropic

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// model is a service that only describes itself.
type model struct{ restore.Service }

func (model) Info() *restore.Info {
	return &restore.Info{ID: "builtin", Vocab: 640, Context: 4096}
}

var env = api.NewFront(model{}, api.Settings{MaxImages: 2})

// Ensure that a request in Anthropic's form becomes the same question: consecutive messages of one
// role are one, and only fields that nothing reads are ignored.
func TestRequest(t *testing.T) {
	q, err := Parse([]byte(`{"model":"builtin","max_tokens":7,"stream":true,"temperature":0.5,
		"top_k":3,"stop_sequences":["x"],"metadata":{"user_id":"u"},"tools":[],"odd":1,
		"thinking":{"type":"disabled"},"tool_choice":{"type":"auto"},
		"system":[{"type":"text","text":"be ","cache_control":{"type":"ephemeral"}},
			{"type":"text","text":"brief"}],
		"messages":[{"role":"user","content":"look"},
			{"role":"user","content":[{"type":"image","restore":{"n_vis":5},"source":
				{"type":"base64","media_type":"image/png","data":"AAAA"}},
				{"type":"text","text":"what?","citations":null}]},
			{"role":"assistant","content":[{"type":"text","text":"a cat"}]},
			{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://a/b"}},
				{"type":"text","text":"sure?"}]}],
		"output_config":{"effort":"low","format":{"type":"json_schema","schema":{"type":"null"}}},
		"restore":{"base":"holov","n_vis":9}}`), env)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, m := range q.Messages {
		text := string(m.Role) + ":"
		for _, p := range m.Parts {
			if text += " " + p.Text; p.Picture != nil {
				text += "PICTURE"
			}
		}
		texts = append(texts, text)
	}
	want := []string{"system: be brief", "user: look PICTURE what?", "assistant: a cat",
		"user: PICTURE sure?"}
	reduced, _ := json.Marshal(q.Messages[1].Parts[1].Reduction)
	if !slices.Equal(texts, want) || q.MaxTokens != 7 || !q.Stream || q.Sampling.TopK != 3 ||
		q.Sampling.Temperature != 0.5 || q.Stop[0] != "x" || q.FormatPath !=
		"output_config.format.schema" || string(q.Shown[1].URL) != "http://a/b" ||
		q.Shown[0].Path != "messages[1].content[0].source.data" ||
		string(reduced) != `{"base":"holov","n_vis":5}` {
		t.Errorf("got %q %s %+v", texts, reduced, q)
	}
	if got := strings.Join(q.Ignored, " "); got != "output_config.effort odd" {
		t.Errorf("ignored: got %q", got)
	}
}

// Ensure that fields that cannot be honoured are refused by name.
func TestRefusals(t *testing.T) {
	const user = `"max_tokens":9,"messages":[{"role":"user","content":"a"}]`
	block := func(b string) string {
		return `{"max_tokens":9,"messages":[{"role":"user","content":[` + b + `]}]}`
	}
	for _, c := range [][2]string{
		{`{"messages":[{"role":"user","content":"a"}]}`, `max_tokens: missing`},
		{`{"max_tokens":0,"messages":[{"role":"user","content":"a"}]}`, `max_tokens: got 0`},
		{`{"max_tokens":9}`, `messages: missing`},
		{`{"max_tokens":9,"messages":[]}`, `messages: got 0 messages`},
		{`{` + user + `,"tools":[{}]}`, `"builtin" does not support tools`},
		{`{` + user + `,"tool_choice":{"type":"any"}}`, `"builtin" does not support tools`},
		{`{` + user + `,"thinking":{"type":"enabled","budget_tokens":9}}`, `"builtin" does not support thinking`},
		{`{` + user + `,"output_format":{"type":"json_schema"}}`, `output_format: got an object, want nothing`},
		{`{` + user + `,"output_config":{"format":{"type":"text"}}}`, `output_config.format.type: got "text"`},
		{`{` + user + `,"system":5}`, `system: got 5`},
		{`{` + user + `,"stop_sequences":[""]}`, `stop_sequences[0]: got an empty string`},
		{`{` + user + `,"restore":{"nvis":1}}`, `restore.nvis: unknown field, the nearest is n_vis`},
		{block(`{"type":"document"}`), `messages[0].content[0].type: got "document", want text or image`},
		{block(`{"type":"image"}`), `messages[0].content[0].source: missing`},
		{block(`{"type":"image","source":{"type":"file","file_id":"f"}}`), `source.type: got "file"`},
		{block(`{"type":"image","source":{"type":"base64"}}`), `source.data: missing`},
		{block(``), `messages[0].content: got neither`},
		{`{"max_tokens":9,"messages":[{"role":"assistant","content":"a"}]}`, `in the last message`},
		{`{"max_tokens":9,"messages":[{"role":"tool","content":"a"}]}`, `messages[0].role: got "tool"`},
	} {
		_, err := Parse([]byte(c[0]), env)
		var e *wire.Error
		if !errors.As(err, &e) || e.Status != 400 || !strings.Contains(e.Message, c[1]) {
			t.Errorf("%s: got %v, want %s", c[0], err, c[1])
		}
	}
}

// Ensure that replies, streams and errors have the fields that Anthropic's clients read.
func TestReplies(t *testing.T) {
	call := &api.Call{Request: &restore.Request{MaxTokens: 2}}
	a := &restore.Answer{Text: "hi", Finish: restore.FinishStop,
		Usage: restore.Usage{Prompt: 130, Cached: 30, Generated: 2}}
	long, cut, full := *a, *a, *a
	long.Finish, full.Finish, full.Usage.Generated = restore.FinishLength, restore.FinishLength, 1
	cut.Stop = "x"
	const head = `{"id":"msg_1","type":"message","role":"assistant","model":"builtin","content":[`
	const counts = `"usage":{"input_tokens":100,"cache_creation_input_tokens":0,"cache_read_input_tokens":30,"output_tokens":2}`
	p := &reply{id: "msg_1", model: "builtin", q: call}
	last := p.End(&long)
	for _, c := range []struct {
		got  any
		want string
	}{
		{p.whole(a), head + `{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,` + counts},
		{p.whole(&cut), head + `{"type":"text","text":"hi"}],"stop_reason":"stop_sequence","stop_sequence":"x",` + counts},
		{p.ending(&long), `{"stop_reason":"max_tokens","stop_sequence":null}`},
		{p.ending(&full), `{"stop_reason":"model_context_window_exceeded","stop_sequence":null}`},
		{p.Begin()[0].Data, `{"type":"message_start","message":` + head + `],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0`},
		{p.Begin()[1].Data, `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`},
		{json.RawMessage(p.Piece(&restore.Piece{Text: "h\n"})[0].Text), `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"h\n"}}`},
		{last[0].Data, `{"type":"content_block_stop","index":0}`},
		{last[1].Data, `{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},` + counts},
		{last[2].Data, `{"type":"message_stop"}`},
		{p.Fail(wire.Bad("c", "a", "b"))[0].Data, `{"type":"error","error":{"type":"invalid_request_error","message":"a: b","code":"c"}}`},
		{p.Fail(&wire.Error{Message: "m", RequestID: "req_1"})[0].Data, `{"type":"error","error":{"type":"","message":"m","code":""},"request_id":"req_1"}`},
		{failure(wire.New(503, "loading", "", "m")), `{"type":"error","error":{"type":"overloaded_error","message":"m","code":"loading"}}`},
	} {
		got, err := json.Marshal(c.got)
		if err != nil || !strings.HasPrefix(string(got), c.want) {
			t.Errorf("got %s\nwant %s", got, c.want)
		}
	}
	q, err := ParseCount([]byte(`{"messages":[{"role":"user","content":"a"}]}`), env)
	if err != nil {
		t.Fatal(err)
	}
	if n := q.Whole(a).(Count); n.Input != 130 || n.Restore == nil {
		t.Errorf("got %+v", n)
	}
}

const (
	toolUser   = `"max_tokens":9,"messages":[{"role":"user","content":"a"}]`
	toolSchema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	twoTools   = `"tools":[{"name":"other","input_schema":{"type":"object"}},{"type":"custom",` +
		`"name":"see","description":"d","strict":true,"odd":1,"input_schema":` + toolSchema + `}]`
)

// Ensure that the tool that a request forces is the form of the answer, also in a stream and where
// the answer is cut; and that the call and its result may be sent again.
func TestForcedTool(t *testing.T) {
	for _, empty := range []string{`{}`, `[]`, `null`, `false`} {
		if _, err := Parse([]byte(`{`+toolUser+`,"tools":`+empty+`}`), env); err != nil {
			t.Errorf("tools %s: %v", empty, err)
		}
	}
	q, err := Parse([]byte(`{`+toolUser+`,`+twoTools+
		`,"tool_choice":{"type":"tool","name":"see","disable_parallel_tool_use":true}}`), env)
	if err != nil {
		t.Fatal(err)
	}
	if string(q.Format.Schema) != toolSchema || q.FormatPath != "tools[1].input_schema" ||
		!slices.Equal(q.Ignored, []string{"tools[1].odd"}) {
		t.Errorf("got %s at %s, ignored %q", q.Format.Schema, q.FormatPath, q.Ignored)
	}
	a := &restore.Answer{Text: `{"n":5}`, Finish: restore.FinishStop}
	cut := &restore.Answer{Text: `{"n":`, Finish: restore.FinishLength,
		Usage: restore.Usage{Generated: 9}}
	p := q.Events.(*reply)
	const call = `{"type":"tool_use","id":"toolu_","name":"see","input":`
	for _, c := range []struct {
		got  any
		want string
	}{
		{p.whole(a), `"content":[` + call + `{"n":5}}],"stop_reason":"tool_use","stop_sequence":null,`},
		{p.whole(cut), `"content":[` + call + `{}}],"stop_reason":"max_tokens",`},
		{p.Begin()[1].Data, `{"type":"content_block_start","index":0,"content_block":` + call + `{}}}`},
		{json.RawMessage(p.Piece(&restore.Piece{Text: `{"n"`})[0].Text), `{"type":"content_block_delta",` +
			`"index":0,"delta":{"type":"input_json_delta","partial_json":"{\"n\""}}`},
		{p.End(a)[1].Data, `"delta":{"stop_reason":"tool_use","stop_sequence":null}`},
	} {
		got, err := json.Marshal(c.got)
		got = regexp.MustCompile(`toolu_\w+`).ReplaceAll(got, []byte("toolu_"))
		if err != nil || !strings.Contains(string(got), c.want) {
			t.Errorf("got %s\nwant %s", got, c.want)
		}
	}
	q, err = Parse([]byte(`{"max_tokens":9,"messages":[{"role":"user","content":"a"},
		{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"see","input":{"n": 5}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","is_error":true,"content":"too "},
			{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"large"}]},
			{"type":"tool_result","tool_use_id":"1"}]}],
		"tools":[{"name":"see","input_schema":`+toolSchema+`}],"tool_choice":{"type":"any"}}`), env)
	if err != nil {
		t.Fatal(err)
	}
	if m := q.Messages; api.Joined(m[1].Parts) != `{"n":5}` || api.Joined(m[2].Parts) !=
		"too large" || q.Ignored != nil {
		t.Errorf("got %+v, ignored %q", m, q.Ignored)
	}
}

// Ensure that other uses of tools are refused by name.
func TestToolRefusals(t *testing.T) {
	const only = `"builtin" does not support tools, except one that tool_choice forces`
	for _, c := range [][2]string{
		{twoTools, only},
		{twoTools + `,"tool_choice":{"type":"auto"}`, only},
		{twoTools + `,"tool_choice":{"type":"any"}`, only},
		{twoTools + `,"tool_choice":{"type":"one"}`, `tool_choice.type: got "one", want auto, any, tool or none`},
		{twoTools + `,"tool_choice":{"type":"tool"}`, `tool_choice.name: missing`},
		{twoTools + `,"tool_choice":{"type":"tool","name":"x"}`, `tool_choice.name: got "x", want the name of one of tools`},
		{`"tool_choice":{"type":"tool","name":"x"}`, `tool_choice.name: got "x", want the name of one of tools`},
		{twoTools + `,"tool_choice":{"type":"tool","name":"see"},"output_config":{"format":{"type":"json_schema","schema":{}}}`,
			`output_config.format: got a format together with the forced tool "see"`},
		{`"tools":[{"name":"a b","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}`,
			`tools[0].name: got "a b", want 1 to 128 letters`},
		{`"tools":[{"name":"a"}],"tool_choice":{"type":"any"}`, `tools[0].input_schema: missing`},
		{`"tools":[{"name":"a","input_schema":{"type":"string"}}],"tool_choice":{"type":"any"}`,
			`tools[0].input_schema.type: got "string", want object`},
		{`"tools":[{"name":"a","input_schema":{"type":"object","not":{}}}],"tool_choice":{"type":"any"}`, `tools[0].input_schema`},
		{`"tools":[{"name":"a","type":"bash_20250124"}],"tool_choice":{"type":"any"}`,
			`"builtin" does not support the tool "bash_20250124"`},
		{`"tools":[{"name":"a","input_schema":5}],"tool_choice":{"type":"any"}`, `tools[0].input_schema: got 5`},
		{`"tools":{},"tool_choice":{"type":"any"}`, `tools: got an object, want a list`},
		{`"tools":[5],"tool_choice":{"type":"any"}`, `tools[0]: got 5`},
	} {
		for _, parse := range []api.Parse{Parse, ParseCount} {
			_, err := parse([]byte(`{`+toolUser+`,`+c[0]+`}`), env)
			var e *wire.Error
			if !errors.As(err, &e) || e.Status != 400 || !strings.Contains(e.Message, c[1]) {
				t.Errorf("%s: got %v, want %s", c[0], err, c[1])
			}
		}
	}
}

// FuzzBodies parses any body.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"max_tokens":1,"system":"s","messages":[{"role":"user","content":[
		{"type":"image","source":{"type":"base64","data":"AAAA"}}]}]}`))
	f.Add([]byte(`{` + toolUser + `,` + twoTools + `,"tool_choice":{"type":"tool","name":"see"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []api.Parse{Parse, ParseCount} {
			q, err := parse(body, env)
			var e *wire.Error
			if err != nil && (!errors.As(err, &e) || e.Status != 400 || e.Code == "") {
				t.Fatalf("%q: %v", body, err)
			}
			if err == nil && len(q.Messages) == 0 {
				t.Fatalf("%q: taken without a question", body)
			}
		}
	})
}

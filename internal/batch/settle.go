package batch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
)

// cachedTokens matches the counts of a usage that depend on earlier answers.
var cachedTokens = regexp.MustCompile(`"(cached|cache_write|cache_read_input)_tokens":\s*\d+`)

// settled returns an answer whose usage does not depend on earlier answers: it sets the cached
// tokens to 0, because they depend on when the run was interrupted. Anthropic's count besides the
// others, to which they are added. So a file that was answered in two runs equals one that was
// answered in one.
func settled(body []byte) []byte {
	var answer struct {
		Usage json.RawMessage `json:"usage"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return body
	}
	usage := cachedTokens.ReplaceAll(answer.Usage, []byte(`"${1}_tokens":0`))
	var n struct {
		Input int `json:"input_tokens"`
		Read  int `json:"cache_read_input_tokens"`
	}
	if json.Unmarshal(answer.Usage, &n) == nil && n.Read > 0 {
		const input = `"input_tokens":%d`
		usage = bytes.Replace(usage, fmt.Appendf(nil, input, n.Input),
			fmt.Appendf(nil, input, n.Input+n.Read), 1)
	}
	return bytes.Replace(body, answer.Usage, usage, 1)
}

package batch

import (
	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// settled returns an answer whose usage does not depend on earlier answers: it sets the cached
// tokens to 0, because they depend on when the run was interrupted. So a file that was answered in
// two runs equals one that was answered in one.
func settled(body []byte) ([]byte, error) {
	for _, path := range []string{
		"usage.prompt_tokens_details.cached_tokens",
		"usage.input_tokens_details.cached_tokens",
		"usage.input_tokens_details.cache_write_tokens",
	} {
		if v := gjson.GetBytes(body, path); !v.Exists() || v.Num == 0 {
			continue
		}
		var err error
		if body, err = sjson.SetBytes(body, path, 0); err != nil {
			return nil, err
		}
	}
	return body, nil
}

package builtin

import (
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"testing"
)

// Ensure every file that a LLaVA directory needs is embedded and is what its name says.
func TestFilesAreWhole(t *testing.T) {
	f := FS()
	for _, name := range []string{
		"config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
		"special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "chat_template.json",
	} {
		data, err := fs.ReadFile(f, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !json.Valid(data) {
			t.Errorf("%s: not JSON", name)
		}
	}

	w, err := fs.ReadFile(f, "model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	header := binary.LittleEndian.Uint64(w)
	if header > uint64(len(w))-8 || !json.Valid(w[8:8+header]) {
		t.Errorf("model.safetensors: header of %d bytes in a file of %d is not JSON", header, len(w))
	}
}

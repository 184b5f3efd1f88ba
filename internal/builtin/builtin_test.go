package builtin

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
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
		t.Errorf("model.safetensors: header of %d bytes in a file of %d is not JSON", header,
			len(w))
	}
}

// Ensure the card is the one in docs, and names the weights that are embedded.
func TestCard(t *testing.T) {
	docs, err := os.ReadFile("../../docs/model-card.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(docs) != Card {
		t.Error("card.md differs from docs/model-card.md: copy the newer one over the other")
	}
	w, err := fs.ReadFile(FS(), "model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(w)); !strings.Contains(Card, sum) {
		t.Errorf("the card does not name the weights' sha256 %s", sum)
	}
}

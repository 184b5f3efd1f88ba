package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// pixtralPrompts have one picture in portrait, two of other sizes, a conversation with a picture
// that is made smaller and a thin one, and none; all after a system message.
var pixtralPrompts = map[string][]string{
	"pixtral-tiny":  {"one", "two", "turns", "text"},
	"mistral3-tiny": {"one", "two", "turns", "text"},
}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same,
// with both forms of the documents.
func TestPixtralStages(t *testing.T) { checkForms(t, pixtralPrompts, "preprocessor_config.json") }

// Ensure that pictures have transformers' pixel values, and that dialogues with their files become
// its prompts and have its answers: the tokens that end rows, system messages, and pictures among
// text.
func TestPixtralAnswers(t *testing.T) {
	for name, prompts := range pixtralPrompts {
		checkPixtralAnswers(t, open(t, "testdata/"+name, 1), name, prompts...)
	}
}

// checkPixtralAnswers compares pixel values, prompts and answers of a model called name.
func checkPixtralAnswers(t *testing.T, e *engine.Engine, name string, prompts ...string) {
	t.Helper()
	for _, prompt := range prompts {
		p, ref := openAsked(t, name, prompt), reference(t, name, prompt)
		pics := p.decoded(t, p.Pictures)
		if len(pics) > 0 {
			px, err := e.Pixels(pics, nil)
			must(t, err)
			if err := golden.Compare(tensor.From(px.Shape, px.Data), ref["pixel_values"],
				0); err != nil {
				t.Errorf("%s/%s: %v", name, prompt, err)
			}
		}
		got, err := e.NewPrompt(context.Background(), engine.Request{
			Messages: said(t, filepath.Join(p.dir, prompt+".ref.json"),
				engine.Pictures(pics...)),
		})
		must(t, err)
		if want, err := ref["input_ids"].Int64s(); err != nil || !slices.Equal(got.IDs(), want) {
			t.Errorf("%s/%s: got the prompt %v, want %v, %v", name, prompt, got.IDs(), want, err)
		}
		answer, err := e.Ask(context.Background(), engine.Request{
			Messages: said(t, filepath.Join(p.dir, prompt+".ref.json"),
				engine.Pictures(pics...)),
			MaxTokens: len(p.Tokens), IgnoreEnd: true,
		})
		must(t, err)
		n := ref["input_ids"].Shape[0]
		if !slices.Equal(answer.Tokens, p.Tokens) || answer.Report.PromptTokens != n {
			t.Errorf("%s/%s: got %v after %d tokens, want %v after %d", name, prompt,
				answer.Tokens, answer.Report.PromptTokens, p.Tokens, n)
		}
	}
}

// Ensure that the tokens that end the rows of a reduced picture stay at their places, and that the
// decoder reads rows and positions as transformers does.
func TestPixtralReduced(t *testing.T) {
	for name := range pixtralPrompts {
		want := reference(t, name, "reduced")
		got := reduced(t, open(t, "testdata/"+name, 2), reference(t, name, "one"),
			methods.Options{Base: "divprune", NVis: want["reduce.kept"].Shape[0]})
		have, kept := numbers(t, got["reduce.kept"]), numbers(t, want["reduce.kept"])
		if slices.Sort(have); !slices.Equal(have, kept) {
			t.Errorf("%s: kept %v, want %v", name, have, kept)
		}
		addTails(t, got, map[string]*tensor.Tensor{"logits.tail": want["logits"]})
		got["logits"] = got["logits.tail"]
		for _, part := range []string{"positions", "embeds", "logits"} {
			if err := golden.Compare(got[part], want[part], tolStage); err != nil {
				t.Errorf("%s: %s: %v", name, part, err)
			}
		}
	}
}

// Ensure that methods keep to budgets and leave the tokens that end rows, or are refused for a
// named reason.
func TestPixtralMethods(t *testing.T) {
	checkMethods(t, "mistral3-tiny", "one", 4, onePart("projector.out"), map[string]string{
		"tome": "merger joins 2x2", "flowcut": "merger joins 2x2", "prumerge": "class token",
		"prumerge-plus": "class token", "downsample": "other places", "fitprune": "recipe",
		"pixelprune": "needs all patches",
	})
}

// Ensure that a conversation with cached keys answers like one that is read from scratch, and that
// results do not depend on the number of threads.
func TestPixtralConversation(t *testing.T) {
	for name := range pixtralPrompts {
		checkConversation(t, open(t, "testdata/"+name, 2), []methods.Options{
			{}, {Base: "divprune", NVis: 8, Restore: true}, {Base: "dart", NVis: 6},
		})
		var one map[string]*tensor.Tensor
		for _, threads := range []int{1, 2, 5} {
			got := reduced(t, open(t, "testdata/"+name, threads), reference(t, name, "two"),
				methods.Options{Base: "vispruner", NVis: 4, Restore: true})
			if one == nil {
				one = got
			}
			same(t, name, got, one, "vision.merger", "logits", "gen.logits")
		}
	}
}

// Ensure that a prompt of several chunks has the answer of one that is read in one piece.
func TestPixtralChunks(t *testing.T) {
	const name = "pixtral-tiny"
	e := open(t, rewritten(t, name, "config.json", `"max_position_embeddings": 1024`,
		`"max_position_embeddings": 4096`), 2)
	pics := slices.Repeat([]*imageproc.Picture{decoded(t, "testdata/"+name+"/large.png")}, 18)
	whole, err := lab.Trace(context.Background(), e, lab.TraceRequest{
		Prompt: "What?", Images: pics, Tokens: 6, NoMaps: true,
	})
	must(t, err)
	got, err := e.Ask(context.Background(), engine.Request{
		Prompt: "What?", Images: engine.Pictures(pics...), MaxTokens: 6, IgnoreEnd: true,
	})
	must(t, err)
	if n := got.Report.PromptTokens; n < 1100 || n != whole["embeds"].Shape[0] {
		t.Errorf("got %d rows, want %d", n, whole["embeds"].Shape[0])
	}
	for i, id := range numbers(t, whole["gen.tokens"]) {
		if int32(id) != got.Tokens[i] {
			t.Errorf("token %d: got %d, want %v", i, got.Tokens[i], id)
		}
	}
}

// Ensure that a head in the files is read although config.json says that it is tied, as
// transformers 5 writes it, and that without one it is tied unless config.json denies that.
func TestPixtralHead(t *testing.T) {
	const name, key, tied = "mistral3-tiny", `"spatial_merge_size": 2`, `, "tie_word_embeddings": `
	dir := rewritten(t, name, "config.json", key, key+tied+"true")
	checkPrompt(t, open(t, dir, 2), reference(t, name, "text"))
	for _, more := range []string{"", tied + "true"} {
		dir := rewritten(t, name, "config.json", key, key+more)
		keepWeights(t, dir, func(name string) bool { return !strings.Contains(name, "lm_head") })
		checkVariant(t, dir, name, "tied")
	}
	dir = rewritten(t, name, "config.json", key, key+tied+"false")
	keepWeights(t, dir, func(name string) bool { return !strings.Contains(name, "lm_head") })
	_, err := engine.Open(formats.Files{Model: dir}, engine.Options{Threads: 1})
	if err == nil || !strings.Contains(err.Error(), `missing "language_model.lm_head.weight"`) {
		t.Errorf("without a head that is not tied: got %v", err)
	}
}

// Ensure that a decoder of Ministral 3 has transformers' results, and no context beyond which it
// scales queries.
func TestMinistral3(t *testing.T) {
	const name = "mistral3-tiny"
	const rotation = `"type": "yarn", "rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, ` +
		`"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, ` +
		`"original_max_position_embeddings": 512, "rope_theta": 1e6`
	dir := rewritten(t, name, "config.json", `"model_type": "mistral"`,
		`"model_type": "ministral3", "rope_parameters": {`+rotation+`}`)
	checkVariant(t, dir, name, "ministral3")
	_, err := open(t, dir, 1).Ask(context.Background(), engine.Request{
		Prompt: strings.Repeat("?!", 300), MaxTokens: 1,
	})
	if err == nil || !strings.Contains(err.Error(), "context of 512") {
		t.Errorf("a prompt of more than 512 tokens: got %v", err)
	}
}

// Ensure that Granite's multiplier of embeddings, which changes the epsilon of the decoder's norms
// here, leaves the projector's norm as it is.
func TestGraniteProjector(t *testing.T) {
	const name = "mistral3-tiny"
	dir := rewritten(t, name, "config.json", `"model_type": "mistral"`,
		`"model_type": "granite", "embedding_multiplier": 0.001`)
	ref := reference(t, name, "one")
	maps.DeleteFunc(ref, func(name string, _ *tensor.Tensor) bool {
		return strings.HasPrefix(name, "text.") || strings.HasPrefix(name, "gen.") ||
			strings.HasPrefix(name, "logits")
	})
	checkPrompt(t, open(t, dir, 2), ref)
}

// checkVariant compares prompt "one" on the model in dir with a reference of the checkpoint name
// after changes.
func checkVariant(t *testing.T, dir, name, variant string) {
	t.Helper()
	ref, want := reference(t, name, "one"), reference(t, name, variant)
	maps.DeleteFunc(ref, func(name string, _ *tensor.Tensor) bool {
		return strings.HasPrefix(name, "text.") || strings.HasPrefix(name, "gen.")
	})
	maps.Copy(ref, want)
	checkPrompt(t, open(t, dir, 2), ref)
}

// keepWeights leaves in a copy of a checkpoint the weights whose names keep accepts.
func keepWeights(t *testing.T, dir string, keep func(name string) bool) {
	t.Helper()
	path := filepath.Join(dir, "model.safetensors")
	weights := golden.Read(t, path)
	maps.DeleteFunc(weights, func(name string, _ *tensor.Tensor) bool { return !keep(name) })
	var b bytes.Buffer
	must(t, checkpoint.WriteSafetensors(&b, weights, nil))
	must(t, os.WriteFile(path, b.Bytes(), 0o644))
}

// pixtralGELU is what transformers computes of a prompt where the tower has GELU.
func pixtralGELU(t *testing.T, name string) map[string]*tensor.Tensor {
	t.Helper()
	ref, in := reference(t, name, "gelu"), reference(t, name, "one")
	for _, input := range []string{"input_ids", "pixel_values", "image_grid_thw"} {
		ref[input] = in[input]
	}
	return ref
}

// Ensure that the activation of the tower is config.json's, and GELU if it has none.
func TestPixtralActivation(t *testing.T) {
	for name := range pixtralPrompts {
		for _, act := range []string{"\"hidden_act\": \"gelu\",\n", ""} {
			const width = "  \"hidden_size\": 24"
			dir := rewritten(t, name, "config.json", "\"hidden_act\": \"silu\",\n"+width, act+width)
			checkPrompt(t, open(t, dir, 2), pixtralGELU(t, name))
		}
	}
}

// Ensure that files without an encoder answer text like those with one.
func TestPixtralText(t *testing.T) {
	for name := range pixtralPrompts {
		dir := copyDir(t, "testdata/"+name)
		var config map[string]any
		golden.JSON(t, filepath.Join(dir, "config.json"), &config)
		config["vision_config"] = nil
		data, err := json.Marshal(config)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644))
		keepWeights(t, dir, func(name string) bool {
			return strings.HasPrefix(name, "language_model.")
		})
		checkPrompt(t, open(t, dir, 2), reference(t, name, "text"))
	}
}

// rewritten returns a copy of a checkpoint in testdata with other text in a file.
func rewritten(t *testing.T, name, file, from, to string) string {
	t.Helper()
	dir := copyDir(t, "testdata/"+name)
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(data), from, to)), 0o644))
	return dir
}

// Ensure that a picture too thin for its longest edge, a video, another processor, and a tokenizer
// without the tokens that end rows are refused by name.
func TestPixtralRefusals(t *testing.T) {
	const name = "pixtral-tiny"
	black := func(w, h int) *imageproc.Picture {
		return &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 3*w*h)}
	}
	ask := func(file, from, to string, r engine.Request) error {
		dir := rewritten(t, name, file, from, to)
		e, err := engine.Open(formats.Files{Model: dir}, engine.Options{Threads: 1})
		if err != nil {
			return err
		}
		defer e.Close()
		r.Prompt, r.MaxTokens = "?", 1
		_, err = e.Ask(context.Background(), r)
		return err
	}
	small := engine.Request{Images: engine.Pictures(black(4, 4))}
	for want, err := range map[string]error{
		"with a longest edge of 40 pixels, 0x40 are left": ask("config.json", "x", "x",
			engine.Request{Images: engine.Pictures(black(1, 99))}),
		"takes no videos": ask("config.json", "x", "x", engine.Request{
			Video: &imageproc.Video{Frames: []*imageproc.Picture{black(4, 4)}, FPS: 1}}),
		"got Idefics3ImageProcessor, want PixtralImageProcessor": ask("preprocessor_config.json",
			"PixtralImageProcessor", "Idefics3ImageProcessor", small),
		"for [IMG_BREAK], want a token of its own": ask("tokenizer.json", "[IMG_BREAK]",
			"[IMG_OTHER]", small),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Ensure that llama.cpp's files have transformers' stages, pixels, prompts and answers, also a
// decoder of the architecture mistral3, as it writes Mistral Small now, and the decoder's file
// alone text's.
func TestPixtralGGUF(t *testing.T) {
	exact := engine.Options{Threads: 2, Quant: "f32"}
	for name, prompts := range pixtralPrompts {
		dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
		model := filepath.Join(dir, name+".gguf")
		check := func(prompts ...string) {
			t.Helper()
			e := openWith(t, dir, exact, engine.Hooks{})
			checkPixtralAnswers(t, e, name, prompts...)
			for _, prompt := range prompts {
				checkPrompt(t, e, reference(t, name, prompt))
			}
		}
		check(prompts...)
		if name == "mistral3-tiny" {
			b, err := os.ReadFile(model)
			must(t, err)
			must(t, os.WriteFile(model, []byte(reheaded(t, string(b), toMistral3)), 0o644))
			check(prompts...)
		}
		must(t, os.Remove(filepath.Join(dir, "mmproj-"+name+".gguf")))
		check("text")
	}
}

// Ensure that llama.cpp's keys of Ministral 3 give transformers' results, with and without the
// arguments of YaRN that have defaults, and that others are refused.
func TestMinistral3GGUF(t *testing.T) {
	const name = "mistral3-tiny"
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	model := filepath.Join(dir, name+".gguf")
	b, err := os.ReadFile(model)
	must(t, err)
	number := func(x float32) string {
		return string(binary.LittleEndian.AppendUint32([]byte{6, 0, 0, 0}, math.Float32bits(x)))
	}
	const length, base = "\x04\x00\x00\x00\x00\x02\x00\x00", "llama.rope.freq_base"
	const yarn = "\x08\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00yarn"
	keys := [][2]string{
		{"rope.scaling.type", yarn}, {"rope.scaling.factor", number(16)},
		{"rope.scaling.original_context_length", length},
		{"rope.scaling.yarn_log_multiplier", number(1)},
		{"attention.temperature_scale", number(0.1)},
	}
	write := func(keys ...[2]string) {
		must(t, os.WriteFile(model, []byte(reheaded(t, string(b), func(file string) string {
			more := ""
			for _, key := range keys {
				more += string([]byte{byte(len("llama." + key[0])), 0, 0, 0, 0, 0, 0, 0}) +
					"llama." + key[0] + key[1]
			}
			file = strings.Replace(file, base+number(1e9), base+number(1e6), 1)
			count := []byte{file[16] + byte(len(keys))}
			return toMistral3(file[:16] + string(count) + file[17:24] + more + file[24:])
		})), 0o644))
	}
	for _, more := range [][][2]string{nil, {
		{"rope.scaling.yarn_beta_fast", number(32)}, {"rope.scaling.yarn_beta_slow", number(1)},
	}} {
		write(append(keys, more...)...)
		checkVariant(t, dir, name, "ministral3")
	}
	for want, keys := range map[string][][2]string{
		"rope.scaling.yarn_attn_factor": append(keys,
			[2]string{"rope.scaling.yarn_attn_factor", number(1)}),
		"rope.scaling.yarn_ext_factor": append(keys,
			[2]string{"rope.scaling.yarn_ext_factor", number(1)}),
		"got 1, want more than beta_slow": append(keys,
			[2]string{"rope.scaling.yarn_beta_fast", number(1)}),
		"attention.temperature_scale": keys[4:],
	} {
		write(keys...)
		_, err := engine.Open(formats.Files{Model: dir}, engine.Options{Threads: 1})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// ggufName matches the name of a GGUF file's model up to its text; ggufLlama the architecture llama
// and keys that begin with it. The number is the length of a text.
var (
	ggufName  = regexp.MustCompile(`(?s)general\.name\x08\x00{3}(.)\x00{7}`)
	ggufLlama = regexp.MustCompile(`(?s)[\x05-\x40]\x00{7}llama`)
)

// toMistral3 renames the architecture llama in a header.
func toMistral3(file string) string {
	return ggufLlama.ReplaceAllStringFunc(file, func(s string) string {
		return string([]byte{s[0] + 3}) + s[1:8] + "mistral3"
	})
}

// reheaded returns a GGUF file after a change of its header, and of its model's name, which is
// longer then so that the tensors are aligned.
func reheaded(t *testing.T, file string, change func(string) string) string {
	t.Helper()
	got := change(file)
	if got == file {
		t.Fatal("nothing to change")
	}
	at, more := ggufName.FindStringSubmatchIndex(got), (32+(len(file)-len(got))%32)%32
	return got[:at[2]] + string([]byte{got[at[2]] + byte(more)}) + got[at[3]:at[1]] +
		strings.Repeat(" ", more) + got[at[1]:]
}

// Ensure that files that lack a key, or have one that cannot be honoured, are refused by the key's
// name, and that a file with the name of a template has the published prompts.
func TestPixtralGGUFRefusals(t *testing.T) {
	const name = "mistral3-tiny"
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	var files []string // decoder, projector
	for _, prefix := range []string{"", "mmproj-"} {
		b, err := os.ReadFile(filepath.Join(dir, prefix+name+".gguf"))
		must(t, err)
		files = append(files, string(b))
	}
	// opens the files with a change in one of them
	changed := func(from, to string) (*engine.Engine, error) {
		dir := t.TempDir()
		for i, prefix := range []string{"", "mmproj-"} {
			file := files[i]
			if strings.Contains(file, from) {
				file = reheaded(t, file, func(s string) string {
					return strings.Replace(s, from, to, 1)
				})
			} else if !strings.Contains(files[1-i], from) {
				t.Fatalf("no file has %q", from)
			}
			must(t, os.WriteFile(filepath.Join(dir, prefix+name+".gguf"), []byte(file), 0o644))
		}
		return engine.Open(formats.Files{Model: dir}, engine.Options{Threads: 1, Quant: "f32"})
	}
	const u32, f32 = "\x04\x00\x00\x00", "\x06\x00\x00\x00"
	count := func(n byte) string { return string([]byte{n, 0, 0, 0, 0, 0, 0, 0}) }
	cases := [][3]string{ // from, to, and what the error names
		{"\x00pixtral", "\x00pixtrol", `projector type "pixtrol"`},
		{"tekken", "tokken", `"tokenizer.ggml.pre": "tokken"`},
		{"[IMG_BREAK]", "[IMG_BROKE]", `no token "[IMG_BREAK]"`},
		{"clip.use_silu", "clip.use_relu", `keys "clip.use_silu" and "clip.use_gelu": both false`},
		{f32 + "\xac\xc5\x27\x37\x0d", f32 + "\xac\xc5\x27\x38\x0d",
			`"clip.vision.attention.layer_norm_epsilon": got 3.9`},
		{"_mean\t\x00\x00\x00" + f32 + count(3) + "\x3a\x81\xf6\x3e",
			"_mean\t\x00\x00\x00" + f32 + count(2), `"clip.vision.image_mean": got 2 numbers`},
		{"vision.attention.head_count" + u32 + "\x03", "vision.attention.head_count" + u32 + "\x05",
			`want an even number for each of 5 heads`},
		{"merge_size" + u32 + "\x02", "merge_size" + u32 + "\x00",
			`"clip.vision.spatial_merge_size": got 0`},
		{"merge_size" + u32 + "\x02", "merge_size" + u32 + "\x03", "spatial_merge_size²"},
		{"mm.patch_merger.w", "mm.patch_manger.w", `"clip.vision.spatial_merge_size": got 2`},
		{count(16) + "llama.vocab_size" + u32 + "\x3e\x01\x00\x00", count(33) +
			"llama.attention.temperature_scale" + f32 + "\x00\x00\x80\x3f", `"llama.attention.temperature_scale": got 1`},
	}
	for _, key := range []string{
		"image_size", "patch_size", "embedding_length", "feed_forward_length", "block_count",
		"attention.head_count", "attention.layer_norm_epsilon", "image_mean", "image_std",
		"spatial_merge_size",
	} {
		key = "clip.vision." + key
		cases = append(cases, [3]string{key, key[:len(key)-1] + "?", `"` + key + `"`})
	}
	other, err := changed("clip.use_silu", "clip.use_gelu")
	must(t, err)
	defer other.Close()
	checkPrompt(t, other, pixtralGELU(t, name))
	for _, c := range cases {
		e, err := changed(c[0], c[1])
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%q: got %v, want an error that names %s", c[1], err, c[2])
		}
	}
	template := "{%- set today ="
	at := strings.Index(files[0], template)
	size := files[0][at-8 : at]
	n := int(size[0]) + int(size[1])<<8
	e, err := changed(files[0][at-8:at+n], count(17)+"mistral-v7-tekken")
	must(t, err)
	defer e.Close()
	if got := e.Info().Template; !strings.Contains(got, "built in") {
		t.Errorf("got the template %q, want one that is built in", got)
	}
	checkPixtralAnswers(t, e, name, pixtralPrompts[name]...)
}

package hub

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/web"
)

// choice is the set of a repository's files that a model needs.
type choice struct {
	files []string // in the list's order, without shards that an index names
	index string   // the index of the weights' shards, empty if there is none
	// model and projector are GGUF files: the model's first part, and its mmproj.
	model, projector string
}

// settings are the model files other than weights. Those of withoutTokenizer are needed only
// without a tokenizer.json.
var (
	settings = []string{
		"config.json", "generation_config.json",
		"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
		"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
		"chat_template.json", "chat_template.jinja",
		"quantize_config.json", "quant_config.json", "fitprune.json", "budget.json",
		"adapter_config.json", // of a model that is refused
	}
	withoutTokenizer = []string{"tokenizer.model", "vocab.json", "merges.txt"}
)

// weightFiles are the forms of weights in a Hugging Face folder, in order of preference: one file,
// or an index of shards.
var weightFiles = []struct{ single, index string }{
	{"model.safetensors", "model.safetensors.index.json"},
	{"pytorch_model.bin", "pytorch_model.bin.index.json"},
}

// choose picks the needed files from list: a Hugging Face folder, unless a quantisation is
// requested or there are only GGUF files.
func choose(list []string, quant string) (choice, error) {
	if quant == "" {
		for _, w := range weightFiles {
			single, sharded := slices.Contains(list, w.single), slices.Contains(list, w.index)
			if !single && !sharded {
				continue
			}
			c := choice{files: keepKnown(list)}
			if single {
				c.files = append(c.files, w.single)
			} else {
				c.files, c.index = append(c.files, w.index), w.index
			}
			return c, nil
		}
	}
	return chooseGGUF(list, quant)
}

// keepKnown returns the settings in list.
func keepKnown(list []string) []string {
	wanted := settings
	if !slices.Contains(list, "tokenizer.json") {
		wanted = slices.Concat(settings, withoutTokenizer)
	}
	var files []string
	for _, name := range list {
		if slices.Contains(wanted, name) {
			files = append(files, name)
		}
	}
	return files
}

// defaultQuant is the default quantisation if the repository has it, as with llama.cpp's -hf.
const defaultQuant = "Q4_K_M"

// chooseGGUF picks one quantisation, all its parts, and a projector.
func chooseGGUF(list []string, quant string) (choice, error) {
	var models, projectors []string
	for _, name := range list {
		if !strings.EqualFold(path.Ext(name), ".gguf") {
			continue
		}
		if isProjector(name) {
			projectors = append(projectors, name)
		} else if part, of := splitPart(name); part == 1 || of == 0 {
			models = append(models, name)
		}
	}
	slices.Sort(models)
	if len(models) == 0 {
		return choice{}, &kindError{quant: quant, files: list}
	}
	wanted := quant
	if wanted == "" {
		wanted = defaultQuant
	}
	var c choice
	for _, name := range models {
		if hasQuant(name, wanted) {
			c.model = name
			break
		}
	}
	switch {
	case c.model == "" && quant != "":
		return choice{}, &kindError{quant: quant, files: models}
	case c.model == "":
		c.model = models[0]
	}
	parts, err := allParts(list, c.model)
	if err != nil {
		return choice{}, err
	}
	c.files = parts
	if c.projector = bestProjector(projectors, path.Dir(c.model)); c.projector != "" {
		c.files = append(c.files, c.projector)
	}
	return c, nil
}

// kindError says that a repository has no weights of a supported kind.
type kindError struct {
	quant string
	files []string
}

func (e *kindError) Error() string {
	if e.quant != "" {
		return fmt.Sprintf("no GGUF file of quantisation %q, got %s", e.quant, some(e.files))
	}
	return fmt.Sprintf("no weights that are read here, got %s, want model.safetensors, "+
		"pytorch_model.bin or .gguf files", some(e.files))
}

// Is makes kindError match errs.ErrNotFound.
func (e *kindError) Is(target error) bool { return target == errs.ErrNotFound }

// some lists the first names and counts the rest.
func some(names []string) string {
	const most = 8
	if len(names) == 0 {
		return "no files"
	}
	rest := ""
	if n := len(names) - most; n > 0 {
		names, rest = names[:most], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ") + rest
}

// hasQuant says whether a file's path names the quantisation, as a word between separators in any
// case. Q4_K is not in NAME-Q4_K_M.gguf.
func hasQuant(name, quant string) bool {
	name, quant = strings.ToLower(name), strings.ToLower(quant)
	for from := 0; ; {
		i := strings.Index(name[from:], quant)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(quant)
		before := start == 0 || strings.ContainsRune("-._/", rune(name[start-1]))
		after := end < len(name) && strings.ContainsRune("-./", rune(name[end]))
		if before && after {
			return true
		}
		from = start + 1
	}
}

// splitPattern matches the end of a split file's name.
var splitPattern = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.gguf$`)

// splitPart reads -00001-of-00003.gguf; of is 0 if the file is not split.
func splitPart(name string) (part, of int) {
	m := splitPattern.FindStringSubmatch(name)
	if m == nil {
		return 0, 0
	}
	part, _ = strconv.Atoi(m[1]) // five digits
	of, _ = strconv.Atoi(m[2])
	return part, of
}

// allParts lists a GGUF file and its other parts.
func allParts(list []string, first string) ([]string, error) {
	_, of := splitPart(first)
	if of == 0 {
		return []string{first}, nil
	}
	stem := splitPattern.ReplaceAllString(first, "")
	known := make(map[string]bool, len(list))
	for _, name := range list {
		known[name] = true
	}
	var parts []string
	for i := 1; i <= of; i++ {
		part := fmt.Sprintf("%s-%05d-of-%05d.gguf", stem, i, of)
		if !known[part] {
			return nil, fmt.Errorf("%s: part %s is missing: %w", first, part, errs.ErrNotFound)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// isProjector says whether a GGUF file is a projector, by its name.
func isProjector(name string) bool {
	return strings.Contains(strings.ToLower(path.Base(name)), "mmproj")
}

// projectorTypes are weight types in the order in which a projector is chosen: f16 is what nearly
// all are published in, and no smaller type is as exact.
var projectorTypes = []string{"f16", "bf16", "f32", "q8_0"}

// bestProjector picks one of a repository's projector files, preferably one in the model's folder.
func bestProjector(names []string, folder string) string {
	if slices.ContainsFunc(names, func(name string) bool { return path.Dir(name) == folder }) {
		names = slices.DeleteFunc(names, func(name string) bool { return path.Dir(name) != folder })
	}
	slices.Sort(names)
	for _, t := range projectorTypes {
		for _, name := range names {
			if hasQuant(name, t) {
				return name
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// shards returns the files that an index names.
func shards(index string, raw []byte) ([]string, error) {
	var reply struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &reply); err != nil || len(reply.Map) == 0 {
		return nil, fmt.Errorf("%s: no map from weights to files: %w", index, errs.ErrDamaged)
	}
	var files []string
	for _, file := range reply.Map {
		if !validPath(file) {
			return nil, fmt.Errorf("%s: refused the name %q: %w", index, web.Clean(file),
				errs.ErrDamaged)
		}
		files = append(files, file)
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// glob says whether name matches pattern by the rules of Python's fnmatch: * and ? also match
// slashes, [abc] and [!abc] match one character. As for huggingface_hub, a folder stands for all in
// it.
func glob(pattern, name string) (bool, error) {
	if strings.HasSuffix(pattern, "/") {
		pattern += "*"
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for rest := pattern; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		switch {
		case r == '*':
			b.WriteString(".*")
		case r == '?':
			b.WriteString(".")
		case r == '[' && len(rest) > 2 && strings.Contains(rest[2:], "]"):
			n = 2 + strings.Index(rest[2:], "]") + 1
			set := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `^`, `\^`).Replace(rest[1 : n-1])
			if not, ok := strings.CutPrefix(set, "!"); ok {
				set = "^" + not
			}
			b.WriteString("[" + set + "]")
		default:
			b.WriteString(regexp.QuoteMeta(rest[:n]))
		}
		rest = rest[n:]
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return false, fmt.Errorf("the pattern %q: %w", pattern, err)
	}
	return re.MatchString(name), nil
}

// quantPattern matches a GGUF weight type in file names.
var quantPattern = regexp.MustCompile(`(?i)^(I?Q\d\w*|TQ\d\w*|B?F16|F32|FP16|FP32|MXFP4\w*)$`)

// quantOf returns the quantisation in a GGUF file's name; empty if there is none, and for
// projectors and later parts.
func quantOf(name string) string {
	base := path.Base(name)
	if !strings.EqualFold(path.Ext(base), ".gguf") || isProjector(name) {
		return ""
	}
	if part, _ := splitPart(base); part > 1 {
		return ""
	}
	words := strings.FieldsFunc(base, func(r rune) bool { return r == '-' || r == '.' })
	for i := len(words) - 1; i >= 0; i-- {
		switch {
		case !quantPattern.MatchString(words[i]):
		case i > 0 && words[i-1] == "UD":
			return "UD-" + words[i]
		default:
			return words[i]
		}
	}
	return ""
}

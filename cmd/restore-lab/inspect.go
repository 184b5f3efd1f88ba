package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/seam"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

func newInspect(a *cli.App) *cobra.Command {
	return cli.Group("inspect",
		"Run only the tokenizer, a chat template or picture preparation; write weights as float32",
		newInspectTokens(a), newInspectChat(a), newInspectImage(a), newInspectWeights(a),
		newInspectTensors(a))
}

// tokensJSON is the tokenizer's result for one string.
type tokensJSON struct {
	IDs            []int32  `json:"ids"`
	IDsWithSpecial []int32  `json:"ids_with_special"`
	Offsets        [][2]int `json:"offsets"` // [start, end) in UTF-8 bytes of the text
	Decoded        string   `json:"decoded"`
	DecodedSkip    string   `json:"decoded_skip"`
	Stream         []string `json:"stream"` // the text to emit after each id
	StreamFlush    string   `json:"stream_flush"`
}

func newInspectTokens(a *cli.App) *cobra.Command {
	var tokenizerFile, in, out string
	cmd := &cobra.Command{
		Use:   "tokens",
		Short: "Encode and decode strings with a tokenizer.json or tokenizer.model",
		Long: `Encode a JSON array of strings with a tokenizer.json, or with a tokenizer.model as SentencePiece does, decode the ids, and stream them. Writes a JSON array of objects in the
same order: ids, ids_with_special, offsets (UTF-8 bytes), decoded, decoded_skip, stream, stream_flush.`,
		Example: `  restore-lab inspect tokens --tokenizer tokenizer.json --in strings.json --out out.json`,
		Args:    cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&tokenizerFile, "tokenizer", "", "tokenizer.json or tokenizer.model `file`")
	fs.StringVar(&in, "in", "", "`file` with a JSON array of strings")
	fs.StringVar(&out, "out", "", "write to this `file` instead of stdout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Need(cmd, "tokenizer", tokenizerFile, "in", in); err != nil {
			return err
		}
		outs := a.Outputs(tokenizerFile, in)
		defer outs.Discard()
		if out == "" {
			out = "-"
		}
		file, err := outs.Open("out", out)
		if err != nil {
			return err
		}
		b, err := cli.ReadFile(tokenizerFile, cli.MaxTextBytes)
		if err != nil {
			return err
		}
		t, err := tokenizer.Open(b, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", tokenizerFile, err)
		}
		var texts []string
		if err := cli.ReadJSON(in, &texts); err != nil {
			return err
		}
		all := make([]tokensJSON, len(texts))
		for i, text := range texts {
			if all[i], err = inspectTokens(t, text); err != nil {
				return fmt.Errorf("%s: string %d: %w", in, i, err)
			}
		}
		return file.Write(func(w io.Writer) error { return cli.WriteJSON(w, all) })
	}
	return cmd
}

func inspectTokens(t *tokenizer.Tokenizer, text string) (tokensJSON, error) {
	plain, err := t.Encode(text, tokenizer.EncodeOptions{})
	if err != nil {
		return tokensJSON{}, err
	}
	special, err := t.Encode(text, tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		return tokensJSON{}, err
	}
	j := tokensJSON{
		IDs:            append([]int32{}, plain.IDs...),
		IDsWithSpecial: append([]int32{}, special.IDs...),
		Offsets:        append([][2]int{}, plain.Offsets...),
		Decoded:        t.Decode(plain.IDs, false),
		DecodedSkip:    t.Decode(plain.IDs, true),
		Stream:         []string{},
	}
	s := t.NewStream()
	for _, id := range plain.IDs {
		j.Stream = append(j.Stream, s.Push(id))
	}
	j.StreamFlush = s.Flush()
	return j, nil
}

func newInspectChat(a *cli.App) *cobra.Command {
	var template, in, tools, special string
	var o chat.Options
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Render messages with a chat template",
		Long: "Render a JSON array of messages with a chat template (Jinja text, or a " +
			"JSON file that holds it). The text goes to stdout, with nothing after it.",
		Example: `  restore-lab inspect chat --template chat_template.jinja --in messages.json --add-generation-prompt`,
		Args:    cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&template, "template", "", "`file` of the template")
	fs.StringVar(&in, "in", "", "`file` with a JSON array of messages")
	fs.BoolVar(&o.AddGenerationPrompt, "add-generation-prompt", false,
		"open the assistant's turn at the end")
	fs.BoolVar(&o.ContinueFinalMessage, "continue-final-message", false,
		"leave the last message open")
	fs.BoolVar(&o.AddVisionID, "add-vision-id", false, "number the pictures, if the template can")
	fs.StringVar(&tools, "tools", "", "`file` with a JSON array of tools")
	fs.StringVar(&special, "special-tokens", "",
		"`file` with a JSON object of special tokens (bos_token, eos_token ...)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Need(cmd, "template", template, "in", in); err != nil {
			return err
		}
		t, err := readTemplate(template)
		if err != nil {
			return err
		}
		var msgs []chat.Message
		if err := cli.ReadJSON(in, &msgs); err != nil {
			return err
		}
		if tools != "" {
			if err := cli.ReadJSON(tools, &o.Tools); err != nil {
				return err
			}
		}
		if special != "" {
			if o.SpecialTokens, err = readSpecialTokens(special); err != nil {
				return err
			}
		}
		text, err := t.Render(msgs, o)
		if err != nil {
			return fmt.Errorf("%s: %w", in, err)
		}
		_, err = io.WriteString(a.Out, text)
		return err
	}
	return cmd
}

// readTemplate reads Jinja text, or a JSON file with a chat_template: a text, or a list of named
// texts, of which it takes "default".
func readTemplate(path string) (*chat.Template, error) {
	b, err := cli.ReadText(path)
	if err != nil {
		return nil, err
	}
	text := string(b)
	if json.Valid(b) && bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		if text, err = hf.Template(b); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if text == "" {
			return nil, fmt.Errorf("%s: no template in it, want a key chat_template", path)
		}
	}
	t, err := chat.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// readSpecialTokens reads name: text pairs; a token may also be an object whose text is under
// "content", as in tokenizer_config.json.
func readSpecialTokens(path string) (map[string]string, error) {
	var raw map[string]json.RawMessage
	if err := cli.ReadJSON(path, &raw); err != nil {
		return nil, err
	}
	tokens := map[string]string{}
	for name, v := range raw {
		var s string
		var o struct {
			Content *string `json:"content"`
		}
		switch {
		case json.Unmarshal(v, &s) == nil:
			tokens[name] = s
		case json.Unmarshal(v, &o) == nil && o.Content != nil:
			tokens[name] = *o.Content
		}
	}
	return tokens, nil
}

func newInspectImage(a *cli.App) *cobra.Command {
	var processor, image, out string
	var q cli.QuestionFlags // only how pictures are read
	var m cli.ModelFlags    // only the pixel limits
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Prepare a picture as a model's preprocessor does",
		Long: "Prepare a picture as preprocessor_config.json says, and write " +
			"pixel_values and image_sizes (image_grid_thw if the model has it) as safetensors.",
		Example: `  restore-lab inspect image --processor preprocessor_config.json --image cat.jpg --out px.safetensors`,
		Args:    cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&processor, "processor", "", "preprocessor_config.json `file`")
	fs.StringVar(&image, "image", "", "picture `file`")
	q.AddReading(fs)
	m.AddResize(fs)
	fs.StringVar(&out, "out", "", "safetensors `file` to write")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Need(cmd, "processor", processor, "image", image, "out", out); err != nil {
			return err
		}
		if err := m.CheckResize(); err != nil {
			return err
		}
		outs := a.Outputs(processor, image)
		defer outs.Discard()
		to, err := outs.Open("out", out)
		if err != nil {
			return err
		}
		config, err := cli.ReadText(processor)
		if err != nil {
			return err
		}
		proc, err := families.Processor(config)
		if err != nil {
			return fmt.Errorf("%s: %w", processor, err)
		}
		adjust := imageproc.Adjust{Pad: m.Pad, MinPixels: m.MinPixels, MaxPixels: m.MaxPixels,
			Defaults: m.Defaults()}
		if proc, err = adjust.To(proc); err != nil {
			return err
		}
		if err := q.Check(); err != nil {
			return err
		}
		pic, err := q.Picture(a, image)
		if err != nil {
			return err
		}
		decoded, err := seam.Image(pic.Pic).Pixels()
		if err != nil {
			return err
		}
		px, err := proc.Process([]*imageproc.Picture{decoded})
		if err != nil {
			return fmt.Errorf("%s: %w", cli.StdinName(image), err)
		}
		tensors := lab.PixelValues(px)
		if px.GridTHW == nil { // without the axis of pictures
			tensors["pixel_values"] = tensor.From(px.Shape[1:], px.Data)
		}
		return to.Write(
			func(w io.Writer) error { return checkpoint.WriteSafetensors(w, tensors, nil) },
		)
	}
	return cmd
}

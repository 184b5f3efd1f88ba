package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	restore "github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/builtin"
	"github.com/spf13/cobra"
)

func newShow(a *app) *cobra.Command {
	m := modelFlags{describe: true}
	var asJSON bool
	var f footprintFlags
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Describe a model: architecture, sizes, weights, memory; the embedded one with its card",
		Example: `  restore show -m DIR --quant q4 --n-vis 64`,
		Args:    noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	m.add(fs)
	fs.IntVar(&f.nVis, "n-vis", shownTokens, "predict the memory for `N` visual tokens; 0 for all of them")
	fs.StringVar(&f.picture, "picture", "672x672", "for a picture of this `size` in pixels")
	fs.IntVar(&f.text, "text", 60, "for `N` tokens of text in the prompt")
	fs.IntVar(&f.generated, "gen", 32, "for `N` tokens in the answer")
	fs.BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.RunE = func(*cobra.Command, []string) error {
		model, err := m.open(a)
		if err != nil {
			return err
		}
		defer model.Close()
		info := shown{Info: model.Info()}
		if info.Processor != "" {
			if info.Memory, err = f.predict(model, fs.Changed("n-vis")); err != nil {
				return err
			}
		}
		if asJSON {
			return writeJSON(a.out, info)
		}
		if err := columns(a.out, append(infoRows(info.Info), memoryRows(info.Memory)...)); err != nil || m.dir != "" {
			return err
		}
		_, err = fmt.Fprintf(a.out, "\n%s", builtin.Card)
		return err
	}
	return cmd
}

// shownTokens is what run reduces to by default.
const shownTokens = 64

// shown is the JSON of show.
type shown struct {
	restore.Info
	Memory *restore.Footprint `json:",omitempty"` // nil when the folder has no picture processor
}

// footprintFlags say for what the memory is predicted.
type footprintFlags struct {
	nVis, text, generated int
	picture               string
}

// predict asks for the footprint; a number of visual tokens that nobody asked for may be more than there are.
func (f *footprintFlags) predict(m *restore.Model, asked bool) (*restore.Footprint, error) {
	var w, h int
	if n, err := fmt.Sscanf(f.picture, "%dx%d", &w, &h); n != 2 || err != nil || fmt.Sprintf("%dx%d", w, h) != f.picture {
		return nil, usagef("--picture: got %q, want WIDTHxHEIGHT", f.picture)
	}
	if !asked {
		all, err := m.Footprint(w, h, 0, f.text, f.generated)
		if err != nil || all.Tokens < f.nVis {
			return all, err
		}
	}
	return m.Footprint(w, h, f.nVis, f.text, f.generated)
}

// memoryRows is what show prints of a footprint.
func memoryRows(f *restore.Footprint) [][]string {
	if f == nil {
		return nil
	}
	mb := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }
	return [][]string{{"memory at peak", fmt.Sprintf("%s MB: weights %s, keys and values %s, encoder %s, decoder %s, program %s",
		mb(f.Peak), mb(f.Weights), mb(f.Cache), mb(f.Encoder), mb(f.Decoder), mb(f.Program))},
		{"", fmt.Sprintf("with a picture of %d x %d, %d of its %d tokens, %d of text and %d in the answer",
			f.Width, f.Height, f.Kept, f.Tokens, f.Prompt-f.Kept, f.Generated)}}
}

// infoRows is what show prints of a model, a name and a value a row.
func infoRows(i restore.Info) [][]string {
	rows := [][]string{{"model", i.Name}, {"architecture", i.Architecture}}
	types := slices.Sorted(maps.Keys(i.Types))
	rows = append(rows, []string{"weights", fmt.Sprintf("%.1f million numbers, %.1f MB, %s", float64(i.Params)/1e6, float64(i.Bytes)/1e6, strings.Join(types, ", "))})
	kept := slices.Sorted(maps.Keys(i.Kept))
	rows = append(rows, []string{"kept in memory", fmt.Sprintf("%.1f MB, %s", float64(i.Resident)/1e6, strings.Join(kept, ", "))})
	for _, f := range i.Vision {
		rows = append(rows, []string{"vision " + f.Name, fmt.Sprint(f.Value)})
	}
	for _, f := range i.Text {
		rows = append(rows, []string{"text " + f.Name, fmt.Sprint(f.Value)})
	}
	optional := func(name, value string) {
		if value == "" {
			value = "none in the folder"
		}
		rows = append(rows, []string{name, value})
	}
	tokens := ""
	if i.Tokens > 0 {
		tokens = fmt.Sprintf("%d ids", i.Tokens)
	}
	optional("tokenizer", tokens)
	optional("chat template", i.Template)
	optional("picture processor", i.Processor)
	return append(rows, []string{"end of answer", strings.Trim(fmt.Sprint(i.End), "[]")}, []string{"kernel", fmt.Sprintf("%s, %d threads", i.Kernel, i.Threads)})
}

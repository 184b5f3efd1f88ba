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
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Describe a model: architecture, sizes, weights; the embedded one with its card",
		Example: `  restore show -m DIR`,
		Args:    noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	m.add(fs)
	fs.BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.RunE = func(*cobra.Command, []string) error {
		model, err := m.open(a)
		if err != nil {
			return err
		}
		defer model.Close()
		info := model.Info()
		if asJSON {
			return writeJSON(a.out, info)
		}
		if err := columns(a.out, infoRows(info)); err != nil || m.dir != "" {
			return err
		}
		_, err = fmt.Fprintf(a.out, "\n%s", builtin.Card)
		return err
	}
	return cmd
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

package main

import (
	"fmt"
	"io"
	"os"

	restore "github.com/restore-vlm/restore"
	"github.com/spf13/cobra"
)

func newPack(a *app) *cobra.Command {
	var m modelFlags
	var out string
	cmd := &cobra.Command{
		Use:   "pack",
		Short: "Write a model as one file that is ready to run",
		Long: `Write a model, with its weights in the types of --quant and --encoder-quant, as one file that opens in the time it takes to read it.
Every command takes the file as -m FILE, as the folder that it replaces. It is checked when it is opened: a file that is damaged or
cut short, or whose folder has changed since, is refused.`,
		Example: `  restore pack -m DIR --quant q4 -o model.rst
  restore run -m model.rst --image cat.jpg -p "What is there?"`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	m.addDir(fs)
	m.addThreads(fs)
	m.addQuant(fs)
	fs.StringVarP(&out, "output", "o", "", "`file` to write")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if out == "" || out == "-" {
			return need(cmd, "output", "")
		}
		o, err := m.options(a)
		if err != nil {
			return err
		}
		if err := writeFile(out, a.out, func(w io.Writer) error { return restore.Pack(m.dir, o, w) }); err != nil {
			return err
		}
		info, err := os.Stat(out)
		if err != nil {
			return pathError(out, err)
		}
		_, err = fmt.Fprintf(a.out, "%s  %.1f MB\n", out, float64(info.Size())/1e6)
		return err
	}
	return cmd
}

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/engine"
)

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func newPack(a *app) *cobra.Command {
	var m modelFlags
	var out string
	cmd := &cobra.Command{
		Use:   "pack",
		Short: "Write a model as one file that opens quickly",
		Long: `Write a model, with its weights in the types of --quant and --encoder-quant, as one file that opens at once.
Every command takes the file as -m FILE instead of the folder. Opening refuses a file that is cut short, or whose source folder has
changed. Every weight is checked before its first use, while the first picture is prepared and encoded: nothing is answered from a
damaged file.`,
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
		if err := need(cmd, "output", out); err != nil {
			return err
		}
		o, end, err := m.options(a)
		if err != nil {
			return err
		}
		defer end()
		outs := a.outputs(m.files.Paths()...)
		defer outs.discard()
		file, err := outs.open("output", out)
		if err != nil {
			return err
		}
		size := new(counter)
		err = file.write(func(w io.Writer) error {
			return engine.PackFiles(m.files, o, io.MultiWriter(w, size))
		})
		if err != nil {
			return err
		}
		end()
		_, err = fmt.Fprintf(outs.results(), "%s  %s\n", file.name(), bytesize.MB(int64(*size)))
		return err
	}
	return cmd
}

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/cli"
)

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func newPack(a *cli.App) *cobra.Command {
	var m cli.ModelFlags
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
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	m.AddDir(fs)
	m.AddThreads(fs)
	m.AddQuant(fs)
	fs.StringVarP(&out, "output", "o", "", "`file` to write")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Need(cmd, "output", out); err != nil {
			return err
		}
		if err := a.Bytes("output", out); err != nil {
			return err
		}
		o, end, err := m.Options(a)
		if err != nil {
			return err
		}
		defer end()
		outs := a.Outputs(m.Paths()...)
		defer outs.Discard()
		file, err := outs.Open("output", out)
		if err != nil {
			return err
		}
		size := new(counter)
		err = file.Write(func(w io.Writer) error {
			return cli.ModelCause(restore.Pack(cmd.Context(), m.Path, io.MultiWriter(w, size), o))
		})
		if err != nil {
			return err
		}
		end()
		_, err = fmt.Fprintf(outs.Results(), "%s  %s\n", file.Name(), bytesize.MB(int64(*size)))
		return err
	}
	return cmd
}

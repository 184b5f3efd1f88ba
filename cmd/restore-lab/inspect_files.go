package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/tensor"
)

func newInspectWeights(a *cli.App) *cobra.Command {
	var m cli.ModelFlags
	var out string
	cmd := &cobra.Command{
		Use:   "weights",
		Short: "Write all weights of a model as float32",
		Long: `Write all weights of a model of any format as one safetensors file of float32 under Hugging Face's names. Quantised weights
are dequantised exactly.`,
		Example: `  restore-lab inspect weights -m DIR --out weights.safetensors`,
		Args:    cli.NoArgs,
	}
	fs := cmd.Flags()
	m.AddDir(fs)
	fs.StringVar(&out, "out", "", "safetensors `file` to write")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Need(cmd, "out", out); err != nil {
			return err
		}
		return dump(a, out, m.Paths(),
			func() (checkpoint.Bundle, error) { return m.Bundle(cmd.Context(), a) })
	}
	return cmd
}

func newInspectTensors(a *cli.App) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "tensors FILE",
		Short: "Write the tensors of one file as float32",
		Long: `Write the tensors of one safetensors, GGUF or PyTorch (.bin) file as a safetensors file of float32, under the file's names. Quantised
tensors are dequantised exactly; 64-bit numbers are rounded.`,
		Example: `  restore-lab inspect tensors pytorch_model.bin --out tensors.safetensors`,
		Args:    cli.OneArg("inspect tensors: got %d files, want one"),
	}
	fs := cmd.Flags()
	fs.StringVar(&out, "out", "", "safetensors `file` to write")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.Need(cmd, "out", out); err != nil {
			return err
		}
		return dump(a, out, args,
			func() (checkpoint.Bundle, error) { return formats.Tensors(args[0]) })
	}
	return cmd
}

// dump writes the tensors of a bundle as float32; open opens the bundle from inputs.
func dump(
	a *cli.App, out string, inputs []string, open func() (checkpoint.Bundle, error),
) (err error) {
	outs := a.Outputs(inputs...)
	defer outs.Discard()
	file, err := outs.Open("out", out)
	if err != nil {
		return err
	}
	b, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return file.Write(
		func(w io.Writer) error { return checkpoint.Dump(w, b, b.Names(), tensor.F32, nil) },
	)
}

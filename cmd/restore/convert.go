package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tensor"
)

// convertTypes are the values of --type.
var convertTypes = map[string]tensor.DType{
	"f16":  tensor.F16,
	"bf16": tensor.BF16,
	"f32":  tensor.F32,
}

func newConvert(a *cli.App) *cobra.Command {
	var m cli.ModelFlags
	var out, kind string
	cmd := &cobra.Command{
		Use:   "convert",
		Short: "Write a model as a Hugging Face folder",
		Long: `Write a model of any format as a folder that Hugging Face transformers loads: configuration, weights in 16 or 32 bits under Hugging Face's
names, tokenizer, chat template and picture processor. Quantised weights are dequantised and rounded to the type. A model whose
vocabulary has no token for pictures (original LLaVA) gets one.`,
		Example: `  restore convert -m model.gguf --mmproj mmproj.gguf -o DIR --type bf16`,
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	m.AddDir(flags)
	flags.StringVarP(&out, "output", "o", "", "`folder` to write, which must be new or empty")
	flags.StringVar(&kind, "type", "", "type of the written weights")
	cli.ShowDefault(flags, "type", "the type of most weights; f16 for quantised ones")
	cli.OneOf(flags, "type", "f16", "bf16", "f32")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := cli.Need(cmd, "output", out); err != nil {
			return err
		}
		d := convertTypes[kind]
		if err := checkNewFolder(out); err != nil {
			return err
		}
		b, err := m.Bundle(cmd.Context(), a)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		if kind == "" {
			d = hf.Main(b)
		}
		family, err := families.Of(b.About().Name, b.Parts().Config.Data)
		if err != nil {
			return err
		}
		size, err := makeFolder(cmd.Context(), a, out,
			func(dir string, stopped func() error) error {
				return hf.Write(dir, b, &family.Family, d, stopped)
			})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Out, "%s  %s\n", out, bytesize.MB(size))
		return err
	}
	return cmd
}

// unfinished is where the unfinished folder for path lies, and how its name begins: next to path,
// or in it if it is a folder, which stays as it is, for others may use it.
func unfinished(path string) (parent, prefix string) {
	path = filepath.Clean(path)
	parent = filepath.Dir(path)
	if files.IsFolder(path) {
		parent = path
	}
	return parent, "." + filepath.Base(path) + ".partial-"
}

// checkNewFolder refuses a path that is neither new nor an empty folder. It removes unfinished
// folders of earlier processes.
func checkNewFolder(path string) error {
	parent, prefix := unfinished(path)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return cli.PathError(parent, err)
	}
	left := len(entries)
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), prefix); ok && !alive(rest) {
			os.RemoveAll(filepath.Join(parent, e.Name()))
			left--
		}
	}
	empty := files.IsFolder(path) && left == 0
	if _, err := os.Lstat(path); !empty && !errors.Is(err, fs.ErrNotExist) {
		return cli.Flagf("output", "%s exists already, want a new or an empty folder", path)
	}
	return nil
}

// makeFolder lets write fill a new or an empty folder and returns the bytes of its files. A new
// folder gets its name, and an empty one the files, only when all are complete.
func makeFolder(
	ctx context.Context,
	a *cli.App,
	path string,
	write func(dir string, stopped func() error) error,
) (size int64, err error) {
	parent, prefix := unfinished(path)
	within := files.IsFolder(path)
	dir := filepath.Join(parent, prefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, cli.PathError(path, err)
	}
	a.Partial.Add(dir)
	defer func() {
		os.RemoveAll(dir) // of a complete one nothing is left
		a.Partial.Forget(dir)
	}()
	if err := write(dir, func() error { return context.Cause(ctx) }); err != nil {
		if ctx.Err() != nil {
			return 0, cli.CutShort("convert: interrupted, nothing is written")
		}
		if errors.Is(err, syscall.ENOSPC) {
			return 0, cli.PathError(path, syscall.ENOSPC)
		}
		return 0, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, cli.PathError(dir, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
		if within && err == nil {
			err = files.Move(filepath.Join(dir, e.Name()), filepath.Join(path, e.Name()))
		}
	}
	if !within {
		err = files.Move(dir, path)
	}
	if err != nil {
		return 0, cli.PathError(path, err)
	}
	return size, nil
}

// alive reports whether a process with that id runs, as far as the system tells.
func alive(id string) bool {
	n, err := strconv.Atoi(id)
	if err != nil || n <= 0 {
		return true // not a process id of ours
	}
	p, err := os.FindProcess(n)
	if err != nil {
		return false
	}
	return !errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/scene"
)

func newScene(a *cli.App) *cobra.Command {
	var seed int64
	var out string
	var world worldFlag
	cmd := &cobra.Command{
		Use:   "scene",
		Short: "Draw a test picture, and print its questions and answers",
		Long: `Draw a scene of the kind that the embedded model knows, write it as PNG or JPEG, and print its questions and answers on stdout (stderr with -o -):
one per line, with task, question and answer separated by tabs. The model was trained on seeds below the default and above 10,000,000.

Each world other than the plain one differs from it in one way that the model was not trained on: clutter has blotches, stripes and
gradients behind the objects; plates has a number of two to four digits in every picture, at four sizes; crowd has eight to fifteen
objects; small has objects of one or two of the encoder's patches.`,
		Example: `  restore-lab scene --seed 7 -o scene.png
  restore-lab scene --world crowd -o crowd.png`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.Int64Var(&seed, "seed", scene.EvalSeed,
		"`seed` of the scene: the same seed, the same picture")
	world.add(fs)
	fs.StringVarP(&out, "output", "o", "", "`file` to write, .png or .jpg")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Need(cmd, "output", out); err != nil {
			return err
		}
		if err := cli.CheckPicture("output", out); err != nil {
			return err
		}
		outs := a.Outputs()
		defer outs.Discard()
		file, err := outs.Open("output", out)
		if err != nil {
			return err
		}
		s := scene.NewIn(world.World, seed)
		if err := file.WritePicture(s.Image()); err != nil {
			return err
		}
		for _, q := range s.Questions() {
			if _, err := fmt.Fprintf(outs.Results(), "%s\t%s\t%s\n", q.Task, q.Text,
				q.Answer); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// worldFlag is the flag --world.
type worldFlag struct{ scene.World }

// add declares the flag.
func (w *worldFlag) add(fs *pflag.FlagSet) {
	w.World = scene.Plain
	fs.Var(w, "world", "kind of pictures")
	cli.ShowChoices(fs, "world", w.Type())
}

// Set implements pflag.Value.
func (w *worldFlag) Set(text string) error {
	if !slices.Contains(scene.Worlds(), scene.World(text)) {
		return errors.New("no such world")
	}
	w.World = scene.World(text)
	return nil
}

// String implements pflag.Value.
func (w *worldFlag) String() string { return string(w.World) }

// Type implements pflag.Value: it describes the flag's value.
func (w *worldFlag) Type() string {
	names := make([]string, len(scene.Worlds()))
	for i, world := range scene.Worlds() {
		names[i] = string(world)
	}
	return strings.Join(names, "|")
}

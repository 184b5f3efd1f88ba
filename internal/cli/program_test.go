package cli

import "github.com/spf13/cobra"

// thisProgram is a program for tests, with one command, which has a flag.
var thisProgram = &Program{
	Name: "restore",
	Commands: func(a *App) []*cobra.Command {
		version := NewVersion(a)
		version.Flags().Bool("tiny", false, "print tiny-letters")
		return []*cobra.Command{version}
	},
}

package cli

import "github.com/spf13/cobra"

// thisProgram is a program for tests, with one command.
var thisProgram = &Program{
	Name:     "restore",
	Commands: func(a *App) []*cobra.Command { return []*cobra.Command{NewVersion(a)} },
}

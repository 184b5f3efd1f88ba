package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/restore-vlm/restore/kernel"
	"github.com/spf13/cobra"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and which kernels are in use",
		Long:  "Print the version and which kernels are in use. KERNEL=go|avx2|avxvnni|avx512 in the environment chooses other ones.",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.out, "restore %s\n%s %s/%s\nkernel %s of %s\n", moduleVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
				kernel.Implementation(), strings.Join(kernel.Implementations(), ", "))
			return err
		},
	}
}

// moduleVersion is what the build recorded: a released version, or the commit.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

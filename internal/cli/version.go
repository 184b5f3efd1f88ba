package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/version"
)

// NewVersion returns the command that prints the version.
func NewVersion(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and which kernels are in use",
		Long: "Print the version and which kernels are in use. " +
			"KERNEL=go|avx2|avxvnni|avx512|amx (arm64: go|neon) in the environment chooses others.",
		Args: NoArgs,
		RunE: func(*cobra.Command, []string) error { return writeVersion(a) },
	}
}

func writeVersion(a *App) error {
	if err := kernel.ImplementationError(); err != nil {
		return err
	}
	refused := ""
	if err := kernel.Refused(); err != nil {
		refused = fmt.Sprintf(" (%v)", err)
	}
	_, err := fmt.Fprintf(a.Out, "%s %s\n%s %s/%s\nkernel %s of %s%s\n", a.program.Name,
		version.Module(), runtime.Version(), runtime.GOOS, runtime.GOARCH, kernel.Implementation(),
		strings.Join(kernel.Implementations(), ", "), refused)
	return err
}

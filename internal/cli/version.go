package cli

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/version"
)

// NewVersion returns the command that prints the version.
func NewVersion(a *App) *cobra.Command {
	var plans bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and which kernels are in use",
		Long: "Print the version and which kernels are in use. " +
			"KERNEL=go|avx2|avxvnni|avx512|amx in the environment chooses others.\n" +
			"With AVX-512 and VNNI, products of one or two rows have two plans, with the same " +
			"results. The first answers of a model measure them, and the choice is stored in " +
			"the user's cache folder. " +
			"KERNEL_PLAN=rows|turns in the environment sets one, and products that do not have " +
			"it use rows.",
		Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := writeVersion(a); err != nil || !plans {
				return err
			}
			calibrate.KeepPlans()
			return writePlans(a.Out, kernel.Plans())
		},
	}
	cmd.Flags().BoolVar(&plans, "plans", false, "print the plans of products as well")
	return cmd
}

// writePlans prints each format's plan, and the times of its trial.
func writePlans(w io.Writer, list []kernel.PlanTrial) error {
	if len(list) == 0 {
		text := "one for every product, with these kernels"
		if kernel.HasPlan("turns", kernel.Q8, 1) {
			text = "not measured yet, with these kernels"
		}
		_, err := fmt.Fprintln(w, "plans: "+text)
		return err
	}
	var rows [][]string
	for _, t := range list {
		text := "fixed"
		if len(t.Ratios) > 0 {
			var times []string
			for _, name := range slices.Sorted(maps.Keys(t.Ratios)) {
				times = append(times, fmt.Sprintf("%s %.2f", name, t.Ratios[name]))
			}
			text = fmt.Sprintf("time: %s, weights of %d x %d", strings.Join(times, ", "), t.N, t.K)
		}
		rows = append(rows, []string{"plan of " + strings.ToLower(t.Format), t.Plan, text})
	}
	return Table(w, rows)
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

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/hub"
)

func newList(a *cli.App) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models in the hub's cache, with sizes and last use",
		Long: `List the models in the hub's cache, including downloads of Python's huggingface_hub: names as -m takes them, sizes, and last use.
Revisions of one repository share files, so their sizes may add up to more than the repository's.`,
		Args: cli.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := hub.New(a.Getenv)
		if err != nil {
			return err
		}
		repos, err := c.List()
		if err != nil {
			return err
		}
		if asJSON {
			if repos == nil {
				repos = []hub.Repo{}
			}
			return cli.WriteJSON(a.Out, struct {
				Cache  string     `json:"cache"`
				Models []hub.Repo `json:"models"`
			}{c.Cache(), repos})
		}
		if len(repos) == 0 {
			a.Note("no models in %s", c.Cache())
			return nil
		}
		return cli.Table(a.Out, listRows(repos, time.Now()))
	}
	return cmd
}

// listRows are the rows that list prints: one for every name that -m takes, and the total.
func listRows(repos []hub.Repo, now time.Time) [][]string {
	rows := [][]string{{"MODEL", "SIZE", "LAST USE", "NOTES"}}
	var total int64
	for _, r := range repos {
		total += r.Bytes
		switch {
		case r.Problem != "":
			rows = append(rows, []string{r.Name, bytesize.MB(r.Bytes), "", cli.OneLine(r.Problem)})
		case len(r.Snapshots) == 0 && r.Cut+r.Dead == 0:
			rows = append(rows, []string{r.Name, bytesize.MB(r.Bytes), "", "no files"})
		}
		for _, v := range r.Snapshots {
			name := hub.Name{Repo: r.Name}
			if !slices.Contains(v.Refs, "main") && len(r.Snapshots) > 1 || len(v.Refs) > 0 &&
				!slices.Contains(v.Refs, "main") {
				name.Revision = append(slices.Clone(v.Refs), v.Commit)[0]
			}
			var notes []string
			if len(v.Quants) > 0 {
				name.Quant = v.Quants[0]
			}
			if len(v.Quants) > 1 {
				notes = append(notes, "also :"+strings.Join(v.Quants[1:], " :"))
			}
			if len(v.Refs) > 1 {
				notes = append(notes, "revisions "+strings.Join(v.Refs, ", "))
			}
			rows = append(rows, []string{name.String(), bytesize.MB(v.Bytes),
				ago(now, v.LastUse), strings.Join(notes, "; ")})
		}
		if r.Cut > 0 {
			rows = append(rows, []string{r.Name, bytesize.MB(r.Cut), "",
				"of an interrupted download; pull it again to continue"})
		}
		if r.Dead > 0 {
			rows = append(rows, []string{r.Name, bytesize.MB(r.Dead), "",
				"of a download that no pull continues; rm deletes it"})
		}
	}
	return append(rows, []string{"total", bytesize.MB(total), "", ""})
}

// ago says how long before now an event was; the zero time is none.
func ago(now, event time.Time) string {
	d := now.Sub(event)
	switch day := 24 * time.Hour; {
	case event.IsZero():
		return ""
	case d < time.Minute:
		return "now"
	case d < 2*time.Hour:
		return fmt.Sprintf("%d minutes ago", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d hours ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d days ago", d/day)
	}
}

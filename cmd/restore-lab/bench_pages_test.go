package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that pages are measured whole and pruned: exact copies of a text and of a screen are left
// out, copies in a scan only within a tolerance; and that flags out of range are refused.
func TestBenchPages(t *testing.T) {
	const tiny = "../../internal/engine/testdata/qwen25vl-tiny"
	args := []string{"bench", "pages", "-m", tiny, "--patches", "1024", "--repeat", "1"}
	r := commandLine(append(args, "--json")...)
	var j pagesJSON
	if err := json.Unmarshal([]byte(r.Out), &j); err != nil || r.Code != cli.ExitOK || r.Err != "" {
		t.Fatalf("exit %d, stderr %q, %v", r.Code, r.Err, err)
	}
	if len(j.Rows) != 6 {
		t.Fatalf("got %d rows, want 3 pages with 2 tolerances", len(j.Rows))
	}
	for i, r := range j.Rows {
		left := r.Page != "scan" || r.Tau > 0
		if r.Page != []string{"text", "screen", "scan"}[i/2] || r.Tokens != 256 ||
			(r.Encoded < r.Tokens) != left || r.Encoded < 1 ||
			(r.Apart > 0) != left || (r.ApartSized > 0) != left {
			t.Errorf("got %+v", r)
		}
		if !(r.Prepare > 0 && r.Encode > 0 && r.WholePrepare > 0 && r.WholeEncode > 0 &&
			r.SpeedUp > 0 && (r.Predicted < r.WholePredicted) == left) {
			t.Errorf("times %+v", r)
		}
	}
	if scan, text := j.Rows[5], j.Rows[1]; scan.Encoded != text.Encoded {
		t.Errorf("a scan: %d encoded, want the text's %d", scan.Encoded, text.Encoded)
	}
	r = commandLine(append(args, "--pages", "screen", "--tau", "0")...)
	if r.Code != cli.ExitOK || strings.Count(r.Out, "screen  1024     0    256") != 1 {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	for flags, want := range map[string]string{
		"--tau 2": "--tau: out of range, got 2", "--pages letter": `--pages: got "letter"`,
		"--quant q4,q8": "want one type", "--repeat 0": "--repeat: out of range",
		"--shape llava-1.5-7b": "needs all patches",
	} {
		r := commandLine(append([]string{"bench", "pages"}, strings.Fields(flags)...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", flags, r.Code, r.Err, want)
		}
	}
}

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that every number of sequences and every length of a prompt has its row, and that
// flags out of range are refused.
func TestBenchSequences(t *testing.T) {
	args := []string{"bench", "sequences", "--gen", "4", "--repeat", "1", "--prompt", "20"}
	r := commandLine(append(args, "--counts", "2,1,3", "--streams", "2", "--rows", "30,200",
		"--json")...)
	var j sequencesJSON
	if err := json.Unmarshal([]byte(r.Out), &j); err != nil || r.Code != cli.ExitOK || r.Err != "" {
		t.Fatalf("exit %d, stderr %q, %v", r.Code, r.Err, err)
	}
	if len(j.Decode) != 3 || len(j.Stalls) != 2 || j.Streams != 2 || !(j.StepMS > 0) {
		t.Fatalf("got %+v", j)
	}
	for i, n := range []int{2, 1, 3} {
		if d := j.Decode[i]; d.Sequences != n || !(d.TokS > 0 && d.Over > 0 && d.GOPS > 0) ||
			d.OfPeak != 0 {
			t.Errorf("got %+v, want %d sequences and no share of the 8-bit peak", d, n)
		}
		if d := j.Decode[i]; !(d.ProductsMS > 0 && d.AttentionMS > 0 && d.Allowed > 0 &&
			d.StepMS > d.ProductsMS+d.AttentionMS) {
			t.Errorf("got %+v, want a step of products, attention and the rest", d)
		}
	}
	for i, rows := range []int{30, 200} {
		if s := j.Stalls[i]; s.Rows != rows ||
			!(s.P50MS > 0 && s.P50MS <= s.P99MS && s.P99MS <= s.MostMS) {
			t.Errorf("got %+v, want %d rows", s, rows)
		}
	}
	r = commandLine(append(args, "--counts", "1", "--quant", "q4")...)
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "p99 in steps") ||
		!strings.Contains(r.Out, "products allow") || !strings.Contains(r.Out, " %\n") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	for flags, want := range map[string]string{
		"--counts 0": "--counts: out of range, got 0, want 1 to 64", "--rows 99999999": "--rows: out of range",
		"--streams 65": "--streams: out of range", "--prompt 0": "--prompt: out of range",
		"--quant q4,q8": "--quant: got q4,q8, want one type", "--repeat 0": "--repeat: out of range",
	} {
		if r := commandLine(append([]string{"bench", "sequences"},
			strings.Fields(flags)...)...); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", flags, r.Code, r.Err, want)
		}
	}
}

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that every method has a row with and without RESTORE, or a note that says why not, and
// that parts and shares add up.
func TestBenchMethods(t *testing.T) {
	old := benchWeightBytes
	benchWeightBytes = 1 << 20
	defer func() { benchWeightBytes = old }()
	r := commandLine("bench", "methods", "--shape", "embedded", "--n-vis", "128", "--repeat", "1",
		"--json")
	var j methodTimes
	if err := json.Unmarshal([]byte(r.Out), &j); err != nil || r.Code != cli.ExitOK ||
		r.Err != "" {
		t.Fatalf("exit %d, stderr %q, %v", r.Code, r.Err, err)
	}
	if j.Tokens != 576 || j.Width != 192 || j.NVis != 128 || !(j.Encoder > 0 && j.Decoder > 0) {
		t.Errorf("got %+v", j)
	}
	if want := 2 * (len(cli.MethodNames()) - 2); len(j.Rows) != want { // none and pixelprune
		t.Errorf("%d rows, want %d", len(j.Rows), want)
	}
	for _, c := range j.Rows {
		ok := c.Total >= 0 && c.TTFT > 0 && c.Share*c.TTFT/100 <= c.Total*1.001 && c.Select >= 0 &&
			c.Merge >= 0
		if ok = ok && c.Total+1e-9 >= c.Merge+c.Calibrate; !ok || !c.Restore && c.Calibrate != 0 {
			t.Errorf("%+v", c)
		}
	}
	r = commandLine("bench", "methods", "--shape", "embedded", "--n-vis", "64", "--repeat", "1",
		"--base",
		"sparsevlm,random", "--ttft", "1s")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "random + RESTORE") ||
		!strings.Contains(r.Out, "of 1.00 s") || strings.Contains(r.Out, "GOP/s") ||
		!strings.Contains(r.Err, "note: sparsevlm: methods: n-vis: got a mean of 64") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	for args, want := range map[string]string{
		"--base magic": `--base: got "magic"`, "--n-vis 576": "--n-vis: out of range, got 576, want 1 to 575", "--repeat 0": "--repeat: out of range",
		"--ttft -1s": "--ttft: out of range", "--threads 0": "--threads: out of range", "--shape llava-next-7b": "--shape: got llava-next-7b, whose pictures are encoded in views",
	} {
		if r := commandLine(append([]string{"bench", "methods"},
			strings.Fields(args)...)...); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
}

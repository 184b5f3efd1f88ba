package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that the table, the JSON and the plot of attention have all five runs in every layer, and
// that errors name wrong flags.
func TestAttention(t *testing.T) {
	dir := t.TempDir()
	pic := filepath.Join(dir, "scene.png")
	if r := commandLine("scene", "--seed", "7", "-o", pic); r.Code != cli.ExitOK {
		t.Fatal(r.Err)
	}
	svg := filepath.Join(dir, "a.svg")
	r := commandLine("attention", "--image", pic, "-p", "How many?", "--out", svg)
	for _, w := range []string{
		"QUERIES", "all tokens", "holov, renumbered", "holov, original places", "holov + RESTORE", "\nvisual   5", "\ntext     5",
	} {
		if r.Code != cli.ExitOK || r.Err != "" || !strings.Contains(r.Out, w) {
			t.Errorf("exit %d, stderr %q, lacks %q in %q", r.Code, r.Err, w, r.Out)
		}
	}
	b, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(b))
	for err == nil {
		_, err = d.Token()
	}
	for _, w := range []string{
		"queries: visual rows", "queries: text rows", "holov + RESTORE, renumbered",
	} {
		if err != io.EOF || !bytes.Contains(b, []byte(w)) {
			t.Errorf("plot: %v, lacks %q", err, w)
		}
	}
	drawn := filepath.Join(dir, "a.svg")
	r = commandLine("attention", "--image", pic, "-p", "How many?", "--base", "grid", "--gamma",
		"1",
		"--out", drawn, "--json")
	var j struct {
		Runs []struct {
			Share struct{ Visual, Text, Last []float64 }
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &j); r.Code != cli.ExitOK || err != nil ||
		len(j.Runs) != 5 || len(j.Runs[4].Share.Last) != 6 {
		t.Errorf("exit %d, %v, stderr %q, %q", r.Code, err, r.Err, r.Out)
	}
	if data, err := os.ReadFile(drawn); err != nil || !bytes.HasPrefix(data, []byte("<svg ")) {
		t.Errorf("%.20q, %v, want a drawing", data, err)
	}
	for want, args := range map[string][]string{
		"no --image":                           {"-p", "x"},
		"no --prompt":                          {"--image", pic},
		`--out: got "a.gif", want a name that`: {"--image", pic, "-p", "x", "--out", "a.gif"},
	} {
		if r := commandLine(append([]string{"attention"}, args...)...); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
	if r := commandLine("attention", "--image", pic, "-p", "x", "--n-vis",
		"577"); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, "n-vis: got 577, want at most 576") {
		t.Errorf("exit %d, stderr %q", r.Code, r.Err)
	}
}

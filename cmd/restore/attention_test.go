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
)

// Ensure that the table, the JSON and the plot of attention have all five runs in every layer, and
// that errors name wrong flags.
func TestAttention(t *testing.T) {
	dir := t.TempDir()
	pic := filepath.Join(dir, "scene.png")
	if r := cli("scene", "--seed", "7", "-o", pic); r.code != exitOK {
		t.Fatal(r.err)
	}
	svg := filepath.Join(dir, "a.svg")
	r := cli("attention", "--image", pic, "-p", "How many?", "--out", svg)
	for _, w := range []string{
		"QUERIES", "all tokens", "holov, renumbered", "holov, original places", "holov + RESTORE", "\nvisual   5", "\ntext     5",
	} {
		if r.code != exitOK || r.err != "" || !strings.Contains(r.out, w) {
			t.Errorf("exit %d, stderr %q, lacks %q in %q", r.code, r.err, w, r.out)
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
	r = cli("attention", "--image", pic, "-p", "How many?", "--base", "grid", "--gamma", "1",
		"--out", drawn, "--json")
	var j struct {
		Runs []struct {
			Share struct{ Visual, Text, Last []float64 }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &j); r.code != exitOK || err != nil ||
		len(j.Runs) != 5 || len(j.Runs[4].Share.Last) != 6 {
		t.Errorf("exit %d, %v, stderr %q, %q", r.code, err, r.err, r.out)
	}
	if data, err := os.ReadFile(drawn); err != nil || !bytes.HasPrefix(data, []byte("<svg ")) {
		t.Errorf("%.20q, %v, want a drawing", data, err)
	}
	for want, args := range map[string][]string{
		"no --image":                           {"-p", "x"},
		"no --prompt":                          {"--image", pic},
		`--out: got "a.gif", want a name that`: {"--image", pic, "-p", "x", "--out", "a.gif"},
	} {
		if r := cli(append([]string{"attention"}, args...)...); r.code != exitUsage ||
			!strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.code, r.err, want)
		}
	}
	if r := cli("attention", "--image", pic, "-p", "x", "--n-vis", "577"); r.code != exitUsage ||
		!strings.Contains(r.err, "n-vis: got 577, want at most 576") {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
}

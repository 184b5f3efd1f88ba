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
	"github.com/restore-vlm/restore/internal/cli/clitest"
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

// Ensure that random weights have the layers of their shape, that attention to visual rows is a
// share, less of it without most of the rows.
func TestAttentionOfShape(t *testing.T) {
	dir := t.TempDir()
	pic := filepath.Join(dir, "scene.png")
	if r := commandLine("scene", "--seed", "7", "-o", pic); r.Code != cli.ExitOK {
		t.Fatal(r.Err)
	}
	shape := wordyShape(t)
	args := []string{"attention", "--image", pic, "-p", "How many?", "--n-vis", "4", "--json",
		"--shape"}
	r := commandLine(append(args, shape)...)
	var j attentionJSON
	if err := json.Unmarshal([]byte(r.Out), &j); r.Code != cli.ExitOK || err != nil {
		t.Fatalf("exit %d, %v, stderr %q, %q", r.Code, err, r.Err, r.Out)
	}
	all, pruned := j.Runs[0].Share, j.Runs[2].Share
	if len(all.Text) != 5 || len(all.Visual) != 5 || len(pruned.Text) != 5 {
		t.Fatalf("%d, %d and %d layers, want 5", len(all.Text), len(all.Visual), len(pruned.Text))
	}
	for layer, share := range all.Text {
		if less := pruned.Text[layer]; !(0 < less && less < share && share < 1) {
			t.Errorf("layer %d: shares %v of 16 rows and %v of 4, want 0 < 4 rows < 16 rows < 1",
				layer, share, less)
		}
	}
}

// wordyShape is a tiny shape of five layers with a vocabulary for the embedded model's words.
func wordyShape(t *testing.T) string {
	config := strings.NewReplacer(`"vocab_size": 320`, `"vocab_size": 1000`, "318", "998",
		`"num_hidden_layers": 2`, `"num_hidden_layers": 5`).Replace(tinyLLaVA)
	return clitest.Written(t, "config.json", config)
}

// Ensure that every command refuses a shape that does not exist, and flags that ask for a model's
// files together with a shape.
func TestShapeAlone(t *testing.T) {
	for _, command := range []string{
		"attention --image ../../docs/scene.png -p x", "bench", "bench sequences", "flops", "load", "paper list",
	} {
		for args, want := range map[string]string{
			"--shape llava-1.5-7b -m x": "--shape and --model: both given, got llava-1.5-7b and x",
			"--shape llava-2":           `--shape: got "llava-2", want`,
		} {
			r := commandLine(strings.Fields(command + " " + args)...)
			if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
				t.Errorf("%s %s: exit %d, stderr %q, want %q", command, args, r.Code, r.Err, want)
			}
		}
	}
	for args, want := range map[string]string{
		"load --mmproj x":         "--shape and --mmproj: both given, got llava-1.5-7b and x",
		"paper list --pull":       "--shape and --pull: both given, got llava-1.5-7b and true",
		"paper list --quant auto": "--quant and --shape: got auto and llava-1.5-7b, want a type",
	} {
		r := commandLine(strings.Fields(args + " --shape llava-1.5-7b")...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
}

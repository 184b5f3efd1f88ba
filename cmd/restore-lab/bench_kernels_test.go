package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/kernel"
)

// Ensure that bench kernels prints one object with a row for each kernel, thread count, size and
// number of rows, in comparable units.
func TestBenchKernelsJSON(t *testing.T) {
	smallLimits(t)
	r := commandLine("bench", "kernels", "--m", "1,7", "--size", "64x96", "--limit", "500ms",
		"--json")
	if r.Code != cli.ExitOK || strings.Count(r.Out, "\n") != 1 {
		t.Fatalf("exit code %d, output %q, errors %q", r.Code, r.Out, r.Err)
	}
	var got kernelsJSON
	d := json.NewDecoder(strings.NewReader(r.Out))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.CPU == "" || !(got.Peaks.FMA > 0 && got.Peaks.Dot > 0 && got.Peaks.DRAM > 0) {
		t.Errorf("cpu %q, peaks %+v", got.CPU, got.Peaks)
	}
	if len(got.Kernels) != len(benchFormats)*2*2 && !strings.Contains(r.Err, "are not measured") {
		t.Fatalf("%d products, want %d", len(got.Kernels), len(benchFormats)*2*2)
	}
	for _, k := range got.Kernels {
		if k.N != 64 || k.K != 96 || k.Rounds < 1 || k.Quiet > 1 || k.Best < k.Rate ||
			!(k.Rate > 0 && k.Micro > 0 && k.Peak > 0) {
			t.Errorf("%+v", k)
		}
		if !(k.Over > 0 && k.Reached > 0 && k.Least >= 1) || k.M == 1 && k.Least*k.Over != 1 {
			t.Errorf("%+v: want the time over one row, its least value and the share reached", k)
		}
		if k.M == 1 && !(k.Peak > 0 && k.Peak != got.Peaks.FMA && k.Peak != got.Peaks.Dot) {
			t.Errorf("%+v: want the rate of reading memory too, as of %v", k, got.Peaks.DRAM)
		}
	}
}

// Ensure that few rows are multiplied as a step or, if asked, as a prompt.
func TestBenchKernelsPrompt(t *testing.T) {
	smallLimits(t)
	p := kernel.NewPool(1)
	defer p.Close()
	for _, prompt := range []bool{false, true} {
		b := &kernelBench{
			o: &benchKernelsOptions{prompt: prompt}, pools: map[int]*kernel.Pool{1: p},
		}
		for _, m := range []int{1, 32, 33} {
			step := b.pool(&kernelCell{kernelJSON: kernelJSON{Threads: 1}}, m) != p
			if want := m <= 32 && !prompt; step != want {
				t.Errorf("%d rows, prompt %t: step %t, want %t", m, prompt, step, want)
			}
		}
	}
	r := commandLine("bench", "kernels", "--m", "4", "--size", "64x96", "--limit", "500ms",
		"--json", "--kernel", "q8", "--prompt")
	var got kernelsJSON
	if err := json.Unmarshal([]byte(r.Out), &got); r.Code != cli.ExitOK || err != nil ||
		!got.Prompt || len(got.Kernels) == 0 {
		t.Fatalf("exit code %d, output %q, errors %q", r.Code, r.Out, r.Err)
	}
}

// Ensure that types are compared: in bytes per second for one row, in rows per second for more.
// The products take 1 s in q8 and 3 s in f32.
func TestBenchKernelsTypes(t *testing.T) {
	b := &kernelBench{
		o: &benchKernelsOptions{against: "f32"}, weights: map[kernel.Format]*benchWeights{
			kernel.Q8: {format: kernel.Q8}, kernel.F32: {format: kernel.F32},
		},
	}
	for m, want := range map[int]float64{
		1: 3 * 34. / 128, // a block of 32 has 34 bytes in q8, and 128 in f32
		2: 3,
	} {
		c := &kernelCell{kernelJSON: kernelJSON{M: m, N: 64, K: 64}, format: kernel.Q8}
		b.compareTypes(c, func(w *benchWeights) float64 {
			if w.format == kernel.F32 {
				return 3
			}
			return 1
		})
		if !slices.Equal(c.against, []float64{want, want}) {
			t.Errorf("%d rows: got %v, want %v", m, c.against, want)
		}
	}
}

// Ensure that bench kernels prints a comparison with a type.
func TestBenchKernelsAgainstType(t *testing.T) {
	smallLimits(t)
	r := commandLine("bench", "kernels", "--m", "1,9", "--size", "64x96", "--limit", "1s", "--json",
		"--kernel", "f32,q4m", "--against", "f32", "--threads", "1")
	var got kernelsJSON
	if err := json.Unmarshal([]byte(r.Out), &got); r.Code != cli.ExitOK || err != nil {
		t.Fatalf("exit code %d, output %q, errors %q", r.Code, r.Out, r.Err)
	}
	if len(got.Kernels) != 4 && !strings.Contains(r.Err, "are not measured") ||
		len(got.Kernels) == 0 || got.Against != "f32" {
		t.Fatalf("%+v, want two products of two types against f32", got)
	}
	for _, k := range got.Kernels {
		if !(k.Against > 0) {
			t.Errorf("%+v", k)
		}
	}
	var out bytes.Buffer
	err := got.write(&out)
	if err != nil || !strings.Contains(out.String(), "RATE/F32") {
		t.Errorf("%v, no RATE/F32 in\n%s", err, &out)
	}
}

// Ensure that the least times follow from reading the weight and from multiplying, whichever takes
// longer. A q4 weight of 4096 × 4096 has 9437184 bytes, and a row of x takes 33554432 operations:
// 943.7 µs at 10 GB/s and 67.1 µs at 500 GOP/s.
func TestBenchKernelsLimits(t *testing.T) {
	for _, c := range []struct {
		m              int
		seconds        float64 // of the product
		over           []float64
		least, reached float64
		wantOver       float64
	}{
		{1, 1887.4368e-6, nil, 1, 0.5, 1},
		{8, 1887.4368e-6, []float64{1.1, 3, 1.3}, 1, 0.5, 1.3},         // 536.9 µs, reading longer
		{32, 4294.967296e-6, []float64{4, 4.5, 5}, 2.2756, 0.5, 4.5},   // 2147.5 µs
		{64, 4294.967296e-6, []float64{4.5, 4.5, 4.6}, 4.5511, 1, 4.5}, // 4295.0 µs
	} {
		cell := kernelCell{
			kernelJSON: kernelJSON{M: c.m, N: 4096, K: 4096}, format: kernel.Q4, over: c.over,
		}
		for range 3 {
			cell.reads = append(cell.reads, 10)
			cell.rates = append(cell.rates, 2*float64(c.m)*4096*4096/c.seconds/1e9)
		}
		cell.reads[0], cell.reads[2] = 9.999, 10.001 // the median counts
		cell.compareLimits(500)
		if cell.Over != c.wantOver || cell.Least != c.least || cell.Reached != c.reached {
			t.Errorf("%d rows: over %v, least %v, reached %v, want %v, %v, %v", c.m, cell.Over,
				cell.Least, cell.Reached, c.wantOver, c.least, c.reached)
		}
	}
}

func TestBenchKernelsTable(t *testing.T) {
	var out bytes.Buffer
	peaks := benchPeaks{FMA: 400, BF16: 350, Dot: 1600, Nibble: 1700, Word: 800, DRAM: 40}
	result := &kernelsJSON{CPU: "a CPU", Peaks: peaks, Kernels: []kernelJSON{
		{Name: "q4", M: 1, N: 4096, K: 11008, Threads: 2, Rate: 36, Micro: 72, Peak: 40},
		{Name: "q8", M: 124, N: 4096, K: 4096, Threads: 2, Rate: 900, Micro: 1200, Peak: 1600,
			Over: 11.5, Least: 9.25, Reached: 0.56},
	}}
	if err := result.write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a CPU", "350 GFLOP/s (bfloat16)", "1600 GOP/s (8 bits), 1700 GOP/s (4 bits)",
		"GB/s   50 %        180 %       90 %", "GOP/s  75 %        75 %        56 %",
		"OVER 1  LEAST  REACHED", "11.50×  9.25×  56 %",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestBenchKernelsUsage(t *testing.T) {
	for flags, want := range map[string]string{
		"--kernel q5":          `--kernel: got "q5", want f32|q8|q4|q4m|bf16|f16|q12`,
		"--m 0":                "--m: out of range, got 0, want 1 to 16384",
		"--m 1,many":           "--m",
		"--size 4096":          `--size: got "4096", want OUTxIN`,
		"--size 100x32":        `--size: got "100x32", want OUTxIN`,
		"--size 4096x99999999": "--size: got",
		"--threads 0":          "--threads: out of range, got 0, want 1 to 1024",
		"--limit 0s":           "--limit: out of range, got 0s",
		"--against tall":       `--against: got "tall", want f32|q8|q4|q4m|bf16|f16|q12`,
	} {
		r := commandLine(append([]string{"bench", "kernels"}, strings.Fields(flags)...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%s: exit code %d, %q, want %q", flags, r.Code, r.Err, want)
		}
	}
}

package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/stats"
)

// benchJSON is the object that `bench --json` prints.
type benchJSON struct {
	Model   string `json:"model"`
	CPU     string `json:"cpu"`
	Kernel  string `json:"kernel"`
	Threads int    `json:"threads"`
	Text    int    `json:"text"`
	Gen     int    `json:"gen"`
	Repeat  int    `json:"repeat"`
	Base    string `json:"base"`
	Restore bool   `json:"restore"`
	Encoder string `json:"encoder_quant"`
	// why the program chose Encoder; empty if it did not
	EncoderWhy string `json:"encoder_why,omitempty"`
	// by --quant: the type of keys and values, the number of weights in each type
	Cache map[string]string           `json:"cache_type"`
	Plans map[string]map[string]int64 `json:"plans"`
	Peaks benchPeaks                  `json:"peaks"`
	Rows  []benchRow                  `json:"rows"`
	// how the encoder's time and memory grow with the picture; with two sizes or more
	Growth []benchGrowth `json:"growth,omitempty"`

	limits bool // rows have their stages
}

// benchGrowth is the encoder's time and memory for pictures of one size.
type benchGrowth struct {
	Quant   string  `json:"quant"`
	Patches int     `json:"patches"`
	EncodeS float64 `json:"encode_s"` // median over the runs of all budgets
	// encode_s / (patches · encode_s per patch of the smallest picture)
	OfLinear float64 `json:"of_linear"`
	// peak memory of the process until the picture was reduced, without the weights; 0 if the
	// system does not say or weights are not resident
	Memory int64 `json:"memory_bytes"`
	// how much it grows for each patch more than in the smallest picture
	PerPatch float64 `json:"memory_bytes_per_patch"`
}

// benchPeaks are the machine's limits.
type benchPeaks struct {
	FMA    float64 `json:"fma_gflops"`
	Dot    float64 `json:"dot_gops"`    // 8 bits
	Nibble float64 `json:"nibble_gops"` // 4 bits
	Word   float64 `json:"word_gops"`   // 16 bits
	BF16   float64 `json:"bf16_gflops"`
	DRAM   float64 `json:"dram_gbs"`
}

func (p *benchPeaks) String() string {
	return fmt.Sprintf("%.0f GFLOP/s (multiply-add), %.0f GFLOP/s (bfloat16), %.0f GOP/s "+
		"(16 bits), %.0f GOP/s (8 bits), %.0f GOP/s (4 bits), %.1f GB/s (reading memory)", p.FMA,
		p.BF16, p.Word, p.Dot, p.Nibble, p.DRAM)
}

// of is the limit of products with weights of that type.
func (p *benchPeaks) of(quant string) float64 {
	switch quant {
	case "q8":
		return p.Dot
	case "q4":
		return p.Nibble
	case "q12":
		return p.Word
	case "bf16":
		return p.BF16
	}
	return p.FMA
}

// ofAttention is the limit of the attention of an encoder with weights of that type: half of its
// multiply-adds make scores.
func (p *benchPeaks) ofAttention(encoder string) float64 {
	rounding := model.TowerRounding(encoder)
	values := p.FMA
	switch {
	case rounding == nn.RoundWords && kernel.InUse().Words:
		values = max(p.FMA, p.Word)
	case rounding == nn.RoundPairs, rounding == nn.RoundBytes:
		values = max(p.FMA, p.BF16)
	}
	scores := values
	if rounding == nn.RoundBytes && kernel.InUse().VNNI {
		scores, values = max(scores, p.Dot), max(values, p.Word)
	}
	return 2 / (1/scores + 1/values)
}

// benchRow is one plan and budget: medians over the repeats, in seconds.
type benchRow struct {
	Quant        string  `json:"quant"`
	Patches      int     `json:"patches,omitempty"`
	NVis         int     `json:"n_vis"`
	PromptTokens int     `json:"prompt_tokens"`
	EncodeS      float64 `json:"encode_s"`
	ReduceS      float64 `json:"reduce_s"` // select and merge
	SelectS      float64 `json:"select_s"`
	MergeS       float64 `json:"merge_s"`
	PrefillS     float64 `json:"prefill_s"`
	TTFTS        float64 `json:"ttft_s"` // from the picture's bytes to the first token
	PredictedS   float64 `json:"predicted_ttft_s"`
	// ttft_s of the row with all tokens (same plan and picture) / ttft_s; 0 without such a row
	SpeedUp    float64 `json:"speed_up"`
	DecodeTokS float64 `json:"decode_tok_s"`
	// prefill: operations / time in products / peak of the plan's multiply-adds
	ProductsOfPeak float64 `json:"products_of_peak"`
	ProductsShare  float64 `json:"products_share"` // time in products / prefill
	// what products and attention would take at the peaks of their multiply-adds / encode_s
	EncodeOfPeak float64 `json:"encode_of_peak"`
	// bytes of weights read per second / memory read rate just before and after each run
	DecodeOfDRAM float64 `json:"decode_of_dram"`
	PeakRSS      int64   `json:"peak_rss_bytes"`
	Spread       spread  `json:"spread"`

	Stages []benchStage `json:"stages,omitempty"` // of ttft_s, with --limits

	Peer *peerRow `json:"peer,omitempty"` // with --peer
}

// spread is half the range of the repeats, relative to the median.
type spread struct {
	Encode  float64 `json:"encode"`
	Prefill float64 `json:"prefill"`
	TTFT    float64 `json:"ttft"`
	Decode  float64 `json:"decode"`
}

// fill makes the rows from the cells.
func (j *benchJSON) fill(cells []*benchCell) {
	full := map[string]float64{}
	longest := map[string]*benchCell{}
	for _, c := range cells {
		key := fmt.Sprint(c.quant, c.patches)
		if l := longest[key]; l == nil || c.runs[0].PromptTokens > l.runs[0].PromptTokens {
			longest[key] = c
		}
	}
	for _, c := range cells {
		key := fmt.Sprint(c.quant, c.patches)
		r := j.row(c)
		if len(c.peers) > 0 {
			r.Peer = newPeerRow(c.runs, c.peers, longest[key].peers)
		}
		if r.NVis == c.tokens {
			full[key] = r.TTFTS
		}
		j.Rows = append(j.Rows, r)
	}
	if cells[0].patches < cells[len(cells)-1].patches {
		j.fillGrowth(cells)
	}
	for i := range j.Rows {
		if r := &j.Rows[i]; r.TTFTS > 0 {
			r.SpeedUp = round(full[fmt.Sprint(r.Quant, r.Patches)] / r.TTFTS)
		}
	}
}

// row makes the row of a cell.
func (j *benchJSON) row(c *benchCell) benchRow {
	stat := func(f func(m *lab.Measurement) float64) (median, half float64) {
		var v []float64
		for _, m := range c.runs {
			v = append(v, f(m))
		}
		median = stats.Median(v)
		if median > 0 {
			half = (slices.Max(v) - slices.Min(v)) / 2 / median
		}
		return round(median), round(half)
	}
	seconds := func(f func(m *lab.Measurement) time.Duration) (median, half float64) {
		return stat(func(m *lab.Measurement) float64 { return f(m).Seconds() })
	}
	r := benchRow{
		Quant: c.quant, Patches: c.patches, NVis: c.runs[0].Kept + c.runs[0].Merged,
		PromptTokens: c.runs[0].PromptTokens, PeakRSS: c.rss, PredictedS: round(c.times.First),
	}
	r.EncodeS, r.Spread.Encode = seconds(func(m *lab.Measurement) time.Duration { return m.Encode })
	r.ReduceS, _ = seconds(func(m *lab.Measurement) time.Duration {
		return m.Select + m.Merge
	})
	r.SelectS, _ = seconds(func(m *lab.Measurement) time.Duration { return m.Select })
	r.MergeS, _ = seconds(func(m *lab.Measurement) time.Duration { return m.Merge })
	r.PrefillS, r.Spread.Prefill = seconds(func(m *lab.Measurement) time.Duration {
		return m.Prefill
	})
	r.TTFTS, r.Spread.TTFT = seconds(func(m *lab.Measurement) time.Duration {
		return m.FirstToken
	})
	r.DecodeTokS, r.Spread.Decode = stat(func(m *lab.Measurement) float64 {
		return m.TokensPerSecond
	})
	r.ProductsOfPeak, _ = stat(func(m *lab.Measurement) float64 {
		p := m.PrefillWork.Products
		return float64(p.Operations) / p.Time.Seconds() / 1e9 / j.Peaks.of(c.quant)
	})
	r.ProductsShare, _ = stat(func(m *lab.Measurement) float64 {
		return m.PrefillWork.Products.Time.Seconds() / m.Prefill.Seconds()
	})
	r.EncodeOfPeak, _ = stat(func(m *lab.Measurement) float64 {
		least := float64(m.EncodeWork.Products.Operations)/j.Peaks.of(j.Encoder) +
			c.attention/j.Peaks.ofAttention(j.Encoder)
		return least / 1e9 / m.Encode.Seconds()
	})
	if j.Gen > 0 {
		var shares []float64
		for i, m := range c.runs {
			shares = append(shares,
				float64(m.DecodeWork.Products.Bytes)/m.Decode.Seconds()/1e9/c.read[i])
		}
		r.DecodeOfDRAM = round(stats.Median(shares))
	}
	if j.limits {
		r.Stages = j.stagesOf(c)
	}
	return r
}

// fillGrowth makes the growth from the cells, whose sizes ascend within a plan.
func (j *benchJSON) fillGrowth(cells []*benchCell) {
	var first *benchCell // the plan's smallest picture
	var least float64    // its time
	for len(cells) > 0 {
		c, n := cells[0], 1
		for n < len(cells) && cells[n].quant == c.quant && cells[n].patches == c.patches {
			n++
		}
		var times []float64
		for _, same := range cells[:n] {
			for _, m := range same.runs {
				times = append(times, m.Encode.Seconds())
			}
		}
		cells = cells[n:]
		s := stats.Median(times)
		if first == nil || first.quant != c.quant {
			first, least = c, s
		}
		g := benchGrowth{
			Quant: c.quant, Patches: c.patches, EncodeS: round(s),
			OfLinear: round(s * float64(first.patches) / float64(c.patches) / least),
			Memory:   max(0, c.encodeRSS-c.weights),
		}
		if c != first {
			g.PerPatch = round(float64(c.encodeRSS-first.encodeRSS) /
				float64(c.patches-first.patches))
		}
		j.Growth = append(j.Growth, g)
	}
}

// growthTable is the table of Growth.
func (j *benchJSON) growthTable() [][]string {
	rows := [][]string{{
		"QUANT", "PATCHES", "ENCODE", "PER PATCH", "OF LINEAR", "MEMORY", "MEMORY PER PATCH",
	}}
	for _, g := range j.Growth {
		memory, per := "-", "-"
		if g.Memory > 0 {
			memory = bytesize.MB(g.Memory)
		}
		if g.PerPatch > 0 {
			per = fmt.Sprintf("%.0f kB", g.PerPatch/1000)
		}
		rows = append(rows, []string{
			g.Quant, strconv.Itoa(g.Patches), cli.Seconds(g.EncodeS),
			cli.Seconds(g.EncodeS / float64(g.Patches)), fmt.Sprintf("%.2f×", g.OfLinear),
			memory, per,
		})
	}
	return rows
}

// round keeps five significant digits.
func round(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64)
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	return r
}

// write prints the results and the configuration.
func (j *benchJSON) write(w io.Writer) error {
	fmt.Fprintf(w, "%s on %s, kernel %s, %s\n", j.Model, j.CPU, j.Kernel,
		cli.Count(j.Threads, "thread"))
	for _, q := range slices.Sorted(maps.Keys(j.Plans)) {
		var kept []string
		for _, d := range slices.Sorted(maps.Keys(j.Plans[q])) {
			kept = append(kept, fmt.Sprintf("%.1f million in %s", float64(j.Plans[q][d])/1e6, d))
		}
		fmt.Fprintf(w, "plan %s: %s; keys and values in %s\n", q, strings.Join(kept, ", "),
			strings.ToUpper(j.Cache[q]))
	}
	if j.Encoder != "" {
		fmt.Fprintf(w, "encoder: %s\n", &engine.Encoder{Type: j.Encoder, Why: j.EncoderWhy})
	}
	fmt.Fprintf(w, "peaks: %s\n", &j.Peaks)
	how := "RESTORE over " + j.Base
	if !j.Restore {
		how = j.Base
	}
	fmt.Fprintf(w, "%s, %d tokens of text, %d decoded after the first, medians of %d\n\n", how,
		j.Text, j.Gen, j.Repeat)
	if err := cli.Table(w, j.stageTable()); err != nil {
		return err
	}
	if len(j.Growth) > 0 {
		fmt.Fprintf(w, "\nencoder: time relative to linear growth from the smallest picture, "+
			"memory without the weights and its growth\n\n")
		if err := cli.Table(w, j.growthTable()); err != nil {
			return err
		}
	}
	if j.limits {
		fmt.Fprintf(w, "\nwhat the time to the first token consists of, and what multiply-adds "+
			"would take at their peaks\n\n")
		if err := cli.Table(w, j.limitsTable()); err != nil {
			return err
		}
	}
	if j.Rows[0].Peer == nil {
		return nil
	}
	fmt.Fprintf(w, "\nin turns with --peer, ratios above 1 are for this program: medians of %d "+
		"turns (least to most, %.0f %% sure to span the median)\n\n", j.Repeat,
		100*spanConfidence(j.Repeat))
	return cli.Table(w, j.peerTable())
}

// stageTable has the time of each stage, one line per cell.
func (j *benchJSON) stageTable() [][]string {
	head := []string{
		"QUANT", "N-VIS", "PROMPT", "ENCODE", "SELECT", "MERGE", "PREFILL", "FIRST TOKEN",
		"PREDICTED", "SPEED-UP", "DECODE", "PRODUCTS", "PRODUCTS OF PEAK", "DECODE OF DRAM",
		"ENCODE OF PEAK", "PEAK MEMORY",
	}
	if j.Rows[0].Patches > 0 {
		head = slices.Insert(head, 1, "PATCHES")
	}
	rows := [][]string{head}
	for _, r := range j.Rows {
		s := func(v, half float64) string {
			return fmt.Sprintf("%s ±%.0f%%", cli.Seconds(v), 100*half)
		}
		percent := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
		speedUp := "-"
		if r.SpeedUp > 0 {
			speedUp = fmt.Sprintf("%.2f×", r.SpeedUp)
		}
		row := []string{
			r.Quant, strconv.Itoa(r.NVis), strconv.Itoa(r.PromptTokens),
			s(r.EncodeS, r.Spread.Encode), cli.Seconds(r.SelectS), cli.Seconds(r.MergeS),
			s(r.PrefillS, r.Spread.Prefill), s(r.TTFTS, r.Spread.TTFT), cli.Seconds(r.PredictedS),
			speedUp, fmt.Sprintf("%.2f tok/s ±%.0f%%", r.DecodeTokS, 100*r.Spread.Decode),
			percent(r.ProductsShare), percent(r.ProductsOfPeak), percent(r.DecodeOfDRAM),
			percent(r.EncodeOfPeak), fmt.Sprintf("%.2f GiB", float64(r.PeakRSS)/(1<<30))}
		if r.Patches > 0 {
			row = slices.Insert(row, 1, strconv.Itoa(r.Patches))
		}
		rows = append(rows, row)
	}
	return rows
}

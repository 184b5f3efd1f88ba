package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/lab"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/stats"
)

const peerHelp = "run this `command` in turns with each measurement, and print ratios; it must " +
	"print lines as 'llama-bench -o jsonl' does; {prompt}, {gen} and {threads} stand for " +
	"numbers of tokens and threads"

// peer is another program that is measured in turns with this one.
type peer struct{ args []string }

// newPeer parses --peer: arguments separated by spaces.
func newPeer(command string) (*peer, error) {
	args := strings.Fields(command)
	if len(args) == 0 || !strings.Contains(command, "{prompt}") {
		return nil, cli.Flagf("peer", "got %q, want a command with {prompt} for the tokens that "+
			"it reads", command)
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return nil, cli.Flagf("peer", "%s", cli.OneLine(err.Error()))
	}
	args[0] = path
	return &peer{args}, nil
}

// peerTurn is one measurement of the program.
type peerTurn struct {
	prefill float64 // seconds; 0: not reported
	decode  float64 // tokens per second
}

// peerOutput is the most bytes of the program's output that are read, peerLine the most of one
// line.
const (
	peerOutput = 1 << 20
	peerLine   = 64 << 10
)

// run runs the program once.
func (p *peer) run(ctx context.Context, prompt, gen, threads int) (peerTurn, error) {
	numbers := strings.NewReplacer("{prompt}", strconv.Itoa(prompt), "{gen}", strconv.Itoa(gen),
		"{threads}", strconv.Itoa(threads))
	args := slices.Clone(p.args)
	for i := range args[1:] {
		args[1+i] = numbers.Replace(args[1+i])
	}
	var out, told boundedBuffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &told
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return peerTurn{}, context.Cause(ctx)
		}
		said := bytes.TrimSpace(told.Bytes())
		said = said[bytes.LastIndexByte(said, '\n')+1:]
		return peerTurn{}, fmt.Errorf("--peer: %s: %w: %s", args[0], err, cli.OneLine(string(said)))
	}
	t, err := readPeer(out.Bytes(), prompt, gen)
	if err != nil {
		return peerTurn{}, fmt.Errorf("--peer: %s: %w", args[0], err)
	}
	return t, nil
}

// readPeer reads the lines of llama-bench: a test of a prompt, one of decoding, or both.
func readPeer(output []byte, prompt, gen int) (t peerTurn, err error) {
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, peerLine)
	for lines.Scan() {
		var line struct {
			Prompt int     `json:"n_prompt"`
			Gen    int     `json:"n_gen"`
			Time   float64 `json:"avg_ns"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil || !(line.Time > 0) {
			continue // other output
		}
		switch {
		case line.Prompt == prompt && line.Gen == 0:
			t.prefill = line.Time / 1e9
		case line.Prompt == 0 && line.Gen == gen && gen > 0:
			t.decode = float64(gen) / (line.Time / 1e9)
		}
	}
	if t.prefill == 0 {
		return t, fmt.Errorf(`no line {"n_prompt": %d, "n_gen": 0, "avg_ns": …} in its output`,
			prompt)
	}
	return t, lines.Err()
}

// boundedBuffer keeps only the beginning of what a program writes.
type boundedBuffer struct{ bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(0, peerOutput-b.Len()))])
	return len(p), nil
}

// peerRow compares a row with the other program.
type peerRow struct {
	PrefillS float64 `json:"prefill_s"` // for as many tokens, median
	Prefill  ratio   `json:"prefill"`
	// ratio without the picture's encoding: its prefill of the row with most tokens over our
	// reduction and prefill of this row
	Reduced    ratio   `json:"prefill_of_all"`
	DecodeTokS float64 `json:"decode_tok_s,omitempty"` // from an empty cache
	Decode     *ratio  `json:"decode,omitempty"`
}

// ratio is how many times faster this program is, over the turns.
type ratio struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

func newRatio(v []float64) ratio {
	return ratio{round(stats.Median(v)), round(slices.Min(v)), round(slices.Max(v))}
}

func (r *ratio) String() string {
	return fmt.Sprintf("%.2f× (%.2f to %.2f)", r.Median, r.Least, r.Most)
}

// spanConfidence is the probability that the range of n turns contains the median.
func spanConfidence(n int) float64 { return 1 - math.Pow(2, 1-float64(n)) }

// newPeerRow compares the turns of a cell with the program's turns; all are the program's turns
// with the longest prompt.
func newPeerRow(runs []*lab.Measurement, turns, all []peerTurn) *peerRow {
	var r peerRow
	var prefills, prefill, reduced, decodes, decode []float64
	for i, m := range runs {
		t, own := turns[i], m.Prefill.Seconds()
		prefills = append(prefills, t.prefill)
		prefill = append(prefill, t.prefill/own)
		reduced = append(reduced, all[i].prefill/(own+(m.Select+m.Merge).Seconds()))
		if t.decode > 0 && m.TokensPerSecond > 0 {
			decodes = append(decodes, t.decode)
			decode = append(decode, m.TokensPerSecond/t.decode)
		}
	}
	r.PrefillS = round(stats.Median(prefills))
	r.Prefill, r.Reduced = newRatio(prefill), newRatio(reduced)
	if len(decode) == len(runs) {
		d := newRatio(decode)
		r.DecodeTokS, r.Decode = round(stats.Median(decodes)), &d
	}
	return &r
}

// peerTable returns the rows that were compared with the program.
func (j *benchJSON) peerTable() [][]string {
	rows := [][]string{{"QUANT", "N-VIS", "PROMPT", "PREFILL", "PEER'S", "RATIO",
		"AGAINST ITS LONGEST PROMPT", "DECODE", "PEER'S", "RATIO"}}
	for _, r := range j.Rows {
		p := r.Peer
		row := []string{r.Quant, strconv.Itoa(r.NVis), strconv.Itoa(r.PromptTokens),
			cli.Seconds(r.PrefillS), cli.Seconds(p.PrefillS), p.Prefill.String(),
			p.Reduced.String(),
			"-", "-", "-"}
		if p.Decode != nil {
			row[7] = fmt.Sprintf("%.2f tok/s", r.DecodeTokS)
			row[8] = fmt.Sprintf("%.2f tok/s", p.DecodeTokS)
			row[9] = p.Decode.String()
		}
		rows = append(rows, row)
	}
	return rows
}

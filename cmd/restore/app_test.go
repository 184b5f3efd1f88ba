package main

import (
	"context"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that every error in a command line gives exit code 2, one line with the reason, and a hint
// at the help.
func TestUsageErrors(t *testing.T) {
	picture := clitest.Drawn(t, 7)
	tested.RefusesUsage(t, map[string]struct {
		Args []string
		Want string
	}{
		"unknown command":        {[]string{"rum"}, `unknown command, got "rum", want run|`},
		"unknown with flags":     {[]string{"atention", "--image", "x"}, `unknown command, got "atention", want run|`},
		"flag written out":       {[]string{"run", "-p", "?", "--temperature", "1"}, "unknown flag: --temperature, did you mean --temp?"},
		"unknown flag":           {[]string{"run", "--imagee", "x"}, "unknown flag: --imagee"},
		"fps alone":              {[]string{"run", "-p", "?", "--fps", "3"}, "--fps: has no use without --video-frames, got 3"},
		"no fps":                 {[]string{"run", "-p", "?", "--video-frames", picture, "--fps", "0"}, "--fps: out of range, got 0"},
		"frames both ways":       {[]string{"run", "-p", "?", "--video-frames", picture, "--video-frames", picture, picture}, "--video-frames: repeated"},
		"overlay of a video":     {[]string{"run", "-p", "?", "--video-frames", picture, picture, "--overlay", "x.png"}, "--overlay: cannot be drawn with --video-frames, got 2"},
		"argument":               {[]string{"run", picture}, "want flags only, as in --image " + picture},
		"not a number":           {[]string{"run", "--n-vis", "many"}, `--n-vis: got "many", want a whole number`},
		"both budgets":           {[]string{"run", "--image", picture, "-p", "?", "--n-vis", "64", "--keep-ratio", "0.1"}, "--n-vis: got 64, want one budget (keep-ratio 0.1 is given too)"},
		"no token":               {[]string{"run", "-p", "?", "--n-vis", "0"}, "--n-vis: got 0, want at least 1"},
		"no token over PruMerge": {[]string{"run", "-p", "?", "--base", "prumerge", "--n-vis", "0"}, "--n-vis: got 0, want at least 1"},
		"no share":               {[]string{"run", "-p", "?", "--keep-ratio", "0"}, "--keep-ratio: got 0, want more than 0 and at most 1"},
		"share above 1":          {[]string{"run", "-p", "?", "--keep-ratio", "1.5"}, "--keep-ratio: got 1.5, want more than 0 and at most 1"},
		"unknown method":         {[]string{"run", "-p", "?", "--base", "holo"}, `base: got "holo", want one of none, holov`},
		"unknown value":          {[]string{"run", "-p", "?", "--anchors", "best"}, `anchors: got "best", want one of`},
		"gamma":                  {[]string{"run", "-p", "?", "--gamma", "2"}, "gamma: got 2, want 0 to 1"},
		"useless switch":         {[]string{"run", "-p", "?", "--restore=false", "--anchors", "paper"}, "anchors: got paper, which has no effect with restore=false"},
		"switch of another":      {[]string{"run", "-p", "?", "--base", "grid", "--holov-overflow", "zero"}, "holov-overflow"},
		"budget above tokens":    {[]string{"run", "-p", "?", "--image", picture, "--n-vis", "577"}, "--n-vis: got 577, want at most 576 (the picture's tokens)"},
		"schedule too deep":      {[]string{"run", "-p", "?", "--image", picture, "--base", "fastv", "--schedule", "6:9"}, "--schedule: got layer 6, want 1 to 5 (for fastv: the model has 6 layers)"},
		"budget too small":       {[]string{"run", "-p", "?", "--image", picture, "--base", "fastv", "--n-vis", "64"}, "want at least 96.83, the least (with fastv's stages in 6 layers"},
		"runs above tokens":      {[]string{"run", "-p", "?", "--image", picture, "--holov-patches", "577"}, "--holov-patches: got 577, want at most 576 (the picture's tokens)"},
		"pivots above share":     {[]string{"run", "-p", "?", "--image", picture, "--base", "dart", "--dart-pivots", "33"}, "--dart-pivots: got 33, want at most 32 (the tokens that dart keeps itself)"},
		"merges above half":      {[]string{"run", "-p", "?", "--image", picture, "--base", "tome", "--tome-r", "300"}, "--tome-r: got 300, want at most 288 in block 0"},
		"step above a pass":      {[]string{"run", "-p", "?", "--image", picture, "--base", "vispruner", "--vispruner-step", "400"}, "--vispruner-step: got 400, want at most 280"},
		"switch without base":    {[]string{"run", "-p", "?", "--base", "none", "--gamma", "1"}, "--gamma: got 1, which has no effect without a base"},
		"overlay without base":   {[]string{"run", "-p", "?", "--base", "none", "--overlay", "x.png"}, "--overlay: has nothing to show"},
		"schedule and budget":    {[]string{"run", "-p", "?", "--base", "fastv", "--n-vis", "64", "--schedule", "2:64"}, "--schedule: got 2:64, want one budget (n-vis 64 is given too)"},
		"schedule outside":       {[]string{"run", "-p", "?", "--schedule", "2:64"}, "schedule: got 2:64, which has no effect with base holov"},
		"broken schedule":        {[]string{"run", "-p", "?", "--base", "pdrop", "--schedule", "2:0.5,1:9"}, "layer 1 does not come after 2"},
		"layer of another":       {[]string{"run", "-p", "?", "--base", "pdrop", "--fastv-layer", "2"}, "fastv-layer: got 2, which has no effect with base pdrop (it belongs to fastv)"},
		"layer 0":                {[]string{"run", "-p", "?", "--base", "fastv", "--fastv-layer", "0"}, "--fastv-layer: got 0, want at least 1"},
		"no step":                {[]string{"run", "-p", "?", "--base", "vispruner", "--vispruner-step", "0"}, "--vispruner-step: got 0, want at least 1"},
		"overlay of no picture":  {[]string{"run", "-p", "?", "--overlay", "x.png"}, "--overlay: has nothing to show, got x.png, want a picture"},
		"stages of no picture":   {[]string{"run", "-p", "?", "--base", "fastv", "--n-vis", "192", "--overlay-stages", "x.png"}, "--overlay-stages: has nothing to show, got x.png, want a picture"},
		"broken layers":          {[]string{"run", "-p", "?", "--base", "pdrop", "--pdrop-layers", "3,3"}, `pdrop-layers: got "3,3", want ascending layers`},
		"newlines inside":        {[]string{"run", "-p", "?", "--base", "fastv", "--newlines", "skip"}, "--newlines: got skip, want no say about newlines (fastv acts inside the decoder"},
		"stages outside":         {[]string{"run", "-p", "?", "--overlay-stages", "x.png"}, "--overlay-stages: has nothing to show, got --base holov, want a method inside the encoder or the decoder"},
		"empty prompt":           {[]string{"run", "-p", " "}, "--prompt: empty"},
		"temperature":            {[]string{"run", "-p", "?", "--temp", "-1"}, "--temp: got -1, want 0"},
		"top-p":                  {[]string{"run", "-p", "?", "--top-p", "0"}, "--top-p: out of range, got 0"},
		"min-p":                  {[]string{"run", "-p", "?", "--min-p", "2"}, "--min-p: got 2, want a number"},
		"no answer":              {[]string{"run", "-p", "?", "-n", "0"}, "--n-predict: out of range, got 0"},
		"no threads":             {[]string{"run", "-p", "?", "--threads", "0"}, "--threads: out of range, got 0, want 1 to"},
		"quant":                  {[]string{"run", "-p", "?", "--quant", "q5"}, `--quant: got "q5", want q4|q8|bf16|f16|f32`},
		"cache-type":             {[]string{"run", "--cache-type", "q8", "-p", "x"}, `--cache-type: got "q8", want f32|f16`},
		"encoder-quant":          {[]string{"show", "--encoder-quant", "q4"}, `--encoder-quant: got "q4", want q8|q12|bf16|f16|f32`},
		"picture's size":         {[]string{"show", "--picture", "40x"}, `--picture: got "40x", want WIDTHxHEIGHT`},
		"no pixels to predict":   {[]string{"show", "--picture", "0x5"}, "--picture: out of range, got 0x5, want sides of 1 to 16384"},
		"fewer than no tokens":   {[]string{"show", "--gen", "-1"}, "--gen: out of range, got -1, want 0 to 1048576"},
		"help on nothing":        {[]string{"help", "nope"}, `unknown command, got "nope", want run|`},
		"pull of nothing":        {[]string{"run", "-p", "?", "--pull"}, "--pull: has no effect on the embedded model"},
		"doctor of no address":   {[]string{"doctor", "--server", "nope"}, `--server: got "nope", want a URL as in`},
		"query of a server":      {[]string{"run", "-p", "?", "--server", "http://h/?x=y"}, `--server: got "http://h/?x=y", want a URL as in`},
		"pack without output":    {[]string{"pack", "--quant", "q4"}, "pack: --output is missing"},
		"no pixels":              {[]string{"run", "-p", "?", "--image", picture, "--max-image-pixels", "0"}, "--max-image-pixels: out of range"},
		"method nobody knows":    {[]string{"methods", "magic"}, `methods: unknown method, got "magic", want none|holov`},
	})
}

// Ensure that errors in files give exit code 1 and exactly one line that names the file and the
// reason.
func TestFailures(t *testing.T) {
	picture, empty := clitest.Drawn(t, 7), t.TempDir()
	text := clitest.Written(t, "text.png", "this is no picture\n")
	tested.RefusesFiles(t, empty, map[string]struct{ Args, Want []string }{
		"missing picture":   {[]string{"run", "-p", "?", "--image", "no/such.png"}, []string{"no/such.png", "no such file"}},
		"text named png":    {[]string{"run", "-p", "?", "--image", text}, []string{"text.png"}},
		"folder as picture": {[]string{"run", "-p", "?", "--image", empty}, []string{empty, "is a folder"}},
		"picture too large": {[]string{"run", "-p", "?", "--image", picture, "--max-image-pixels", "1000"}, []string{"scene.png", "336", "1000", "max-image-pixels"}},
		"missing model":     {[]string{"run", "-p", "?", "-m", "no/such"}, []string{"no/such"}},
		"empty folder":      {[]string{"run", "-p", "?", "-m", empty}, []string{"config.json"}},
		"file as model":     {[]string{"show", "-m", picture}, []string{"scene.png"}},
	})
}

// Ensure that a command names an unusable variable, and two that exclude each other.
func TestEnvironmentOfCommand(t *testing.T) {
	r := with(context.Background(), map[string]string{"RESTORE_N_VIS": "many"}, "", "run", "-p",
		"?")
	if r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, `RESTORE_N_VIS: got "many", want a whole number`) {
		t.Errorf("unusable variable: exit %d, stderr %q", r.Code, r.Err)
	}
	r = with(context.Background(),
		map[string]string{"RESTORE_N_VIS": "9", "RESTORE_KEEP_RATIO": "0.5"}, "", "run", "-p", "?")
	if r.Code != cli.ExitUsage || !strings.Contains(r.Err, "one budget") {
		t.Errorf("two variables: exit %d, stderr %q", r.Code, r.Err)
	}
}

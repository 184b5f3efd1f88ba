package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/loadtest"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/seam"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/shape"
	"github.com/restore-vlm/restore/internal/version"
)

// loadOptions are the flags of `restore-lab load`.
type loadOptions struct {
	engine cli.EngineFlags
	url    string
	api    cli.KeyFlags
	shape  string

	clients, budgets []int
	requests         int
	time             time.Duration
	seed             int64
	pictures         int
	tokens           int
	full             bool
	followUp         float64
	cancel, bad      float64
	whole            float64
	fresh, compare   bool
	json             bool
}

func newLoad(a *cli.App) *cobra.Command {
	o := new(loadOptions)
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Ask a server many questions at once, and check every answer",
		Long: `Ask a server many questions at once about drawn pictures, and check every answer: each question is asked again, alone
and without caches, and must have the same answer. Without --server the server runs in this process, on its own port.

Each line of the table is a number of clients and a budget of visual tokens: questions answered, time to the first token (of
all questions, of those about new pictures, and of those about known pictures), time
between the tokens of one answer, tokens and answers per unit of time. Some clients may disconnect in the middle of an answer, ask
follow-up questions, or send requests that must be refused. The exit code is 1 if an answer was wrong or missing.`,
		Example: `  restore-lab load --clients 1,8,32 --n-vis 576,64 --requests 200
  restore-lab load --server http://127.0.0.1:8642 --time 1m --cancel 0.1 --bad 0.1 --follow-up 0.3
  restore-lab load --shape llava-1.5-7b --quant q4 --clients 1,8 --n-vis 576,64 --tokens 32 --ignore-eos --requests 16`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&o.url, "server", "", "`URL` of the server; by default one in this process")
	o.api.Add(fs, "key of the server, the first of several")
	o.engine.Add(fs)
	o.engine.AddQueue(fs)
	addLLaVAShape(fs, &o.shape)
	fs.IntSliceVar(&o.clients, "clients", []int{1, 2, 4, 8, 16, 32},
		"`numbers` of clients that ask at once, separated by commas")
	fs.IntSliceVar(&o.budgets, "n-vis", []int{576, 64},
		"`numbers` of visual tokens of a picture, separated by commas; 0 is all of them")
	fs.IntVar(&o.requests, "requests", 100,
		"send `N` requests for each line of the table; 0: until --time is over")
	fs.DurationVar(&o.time, "time", 5*time.Minute, "end a line of the table after this `time`")
	fs.Int64Var(&o.seed, "seed", 0, "`seed` of pictures and questions")
	fs.IntVar(&o.pictures, "pictures", 20,
		"ask about `N` drawn pictures; 0: questions without a picture")
	fs.IntVar(&o.tokens, "tokens", 32, "answers have at most `N` tokens")
	fs.BoolVar(&o.full, "ignore-eos", false, "answers have exactly that many tokens")
	fs.Float64Var(&o.followUp, "follow-up", 0, "`share` of questions that follow an answer")
	fs.Float64Var(&o.cancel, "cancel", 0, "`share` of clients that disconnect in the middle")
	fs.Float64Var(&o.bad, "bad", 0, "`share` of requests that must be refused")
	fs.Float64Var(&o.whole, "whole", 0, "`share` of requests that are not streamed")
	fs.BoolVar(&o.fresh, "fresh", false, "read no cache, so that every picture is encoded and read")
	fs.BoolVar(&o.compare, "compare", true, "ask every question again, alone, without caches")
	fs.BoolVar(&o.json, "json", false, "print one JSON object per line of the table")
	cli.Within(fs, 1, 1<<20, "clients")
	cli.Within(fs, 0, 1<<20, "n-vis")
	cli.Within(fs, 0, 1, "follow-up", "cancel", "bad", "whole")
	cli.Within(fs, 0, math.Inf(1), "requests")
	cli.Within(fs, 0, 10_000, "pictures")
	cli.Within(fs, 1, math.Inf(1), "tokens")
	cli.Above(fs, 0, math.Inf(1), "time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// check refuses wrong flags.
func (o *loadOptions) check() error {
	if o.url != "" && (o.shape != "" || o.engine.Flags.Changed("model")) {
		return cli.Flagf("server", "got %s together with a model, want one of them", o.url)
	}
	return cli.CheckShape(o.engine.Flags)
}

func (o *loadOptions) run(ctx context.Context, a *cli.App) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.url == "" {
		stop, err := o.serve(a)
		if err != nil {
			return err
		}
		defer stop()
	}
	lo, err := o.options()
	if err != nil {
		return err
	}
	var rows [][]string
	wrong := 0
	for _, n := range o.clients {
		for _, budget := range o.budgets {
			lo.Clients, lo.Budgets = n, []int{budget}
			r, err := loadtest.Run(ctx, lo)
			if err != nil {
				return err
			}
			for _, e := range r.Errors {
				a.Say("%s", cli.OneLine(e))
			}
			wrong += r.Wrong + r.Failed
			if o.json {
				err = cli.WriteJSON(a.Out, r)
			} else {
				rows = append(rows, loadRow(r))
			}
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return errors.Join(o.table(a, rows), cli.CutShort("load: interrupted"))
			}
		}
	}
	if err := o.table(a, rows); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("load: %d answers were wrong or missing", wrong)
	}
	return nil
}

// table writes the rows, unless they were written as JSON.
func (o *loadOptions) table(a *cli.App, rows [][]string) error {
	if o.json {
		return nil
	}
	return cli.Table(a.Out, append([][]string{loadHead}, rows...))
}

var loadHead = []string{"clients", "n-vis", "answers", "refused", "full", "left", "wrong",
	"first p50", "p99", "new p50", "again p50", "gap p50", "p99", "max",
	"tokens/s", "answers/min", "encoded"}

// some formats a time, "–" if there is none.
func some(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return cli.Milliseconds(d)
}

func loadRow(r *loadtest.Result) []string {
	seconds := r.Elapsed.Seconds()
	return []string{strconv.Itoa(r.Clients), strconv.Itoa(r.Budget), strconv.Itoa(r.Answers),
		strconv.Itoa(r.Refused), strconv.Itoa(r.Full),
		strconv.Itoa(r.Cancelled), strconv.Itoa(r.Wrong + r.Failed), cli.Milliseconds(r.First.P50),
		cli.Milliseconds(r.First.P99), some(r.New.P50), some(r.Again.P50),
		cli.Milliseconds(r.Gap.P50), cli.Milliseconds(r.Gap.P99),
		cli.Milliseconds(r.Gap.Max),
		fmt.Sprintf("%.1f", float64(r.Tokens)/seconds),
		fmt.Sprintf("%.1f", 60*float64(r.Answers)/seconds), strconv.Itoa(r.Encoded)}
}

// options are the options that every line of the table shares.
func (o *loadOptions) options() (loadtest.Options, error) {
	key, err := o.api.Key()
	if err != nil {
		return loadtest.Options{}, err
	}
	lo := loadtest.Options{URL: strings.TrimSuffix(o.url, "/"), Key: key, Requests: o.requests,
		Time: o.time, Seed: uint64(o.seed),
		MaxTokens: o.tokens, IgnoreEOS: o.full, FollowUp: o.followUp, Cancel: o.cancel, Bad: o.bad,
		Whole: o.whole,
		Fresh: o.fresh, Compare: o.compare,
		Questions: []string{
			"Describe the image.", "What number is written?", "Is there a red square in the image?",
			"What color is the star?", "How many objects are there?"}}
	for i := range o.pictures {
		lo.Pictures = append(lo.Pictures, scene.New(scene.EvalSeed+o.seed+int64(i)).PNG())
	}
	return lo, nil
}

// serve starts a server in this process and sets o.url.
func (o *loadOptions) serve(a *cli.App) (stop func(), err error) {
	log := slog.New(slog.DiscardHandler)
	m, err := o.open(a, log)
	if err != nil {
		return nil, err
	}
	loader, err := media.New(media.Options{MaxBytes: 20 * cli.MB})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := server.New(server.Options{
		Version: version.Module(), Kernel: kernel.Implementation(), Loopback: true,
		MaxBodyBytes: 64 * cli.MB, Log: log, DrainTimeout: time.Second,
	})
	s.Ready(m, api.Settings{Reduction: &restore.Reduction{Base: "holov"},
		Pictures: restore.PictureOptions{MaxBytes: 20 * cli.MB}, MaxImages: 16, Media: loader})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.Serve(ctx, l) // clients notice its end
	}()
	o.url = "http://" + l.Addr().String()
	return func() {
		cancel()
		<-done
		_ = m.Close() // no data to lose
	}, nil
}

// open loads the model, or makes random weights in a shape.
func (o *loadOptions) open(a *cli.App, log *slog.Logger) (*restore.Model, error) {
	mo, end, err := o.engine.Options(a, log)
	if err != nil {
		return nil, err
	}
	defer end()
	return openOrMake(context.Background(), &o.engine.Model, o.shape, mo)
}

// openOrMake opens the model, or makes random weights in a shape if it has a name.
func openOrMake(
	ctx context.Context, m *cli.ModelFlags, shape string, o *restore.Options,
) (*restore.Model, error) {
	if shape == "" {
		return m.Opened(ctx, o)
	}
	e, err := randomEngine(shape, m.Threads, seam.Options(o))
	if err != nil {
		return nil, err
	}
	return seam.Model(e, o).(*restore.Model), nil
}

// addLLaVAShape adds --shape for randomEngine, which takes LLaVA's models only.
func addLLaVAShape(fs *pflag.FlagSet, name *string) {
	cli.AddShape(fs, name, cli.RandomShape)
	names := slices.DeleteFunc(restore.Shapes(), func(s string) bool {
		return !strings.HasPrefix(s, "llava")
	})
	cli.ShowChoices(fs, "shape", append(names, "FILE")...)
}

// randomEngine makes a model of a shape with random weights, which answers nonsense.
func randomEngine(name string, threads int, eo engine.Options) (*engine.Engine, error) {
	s, err := loadShape(name)
	if err != nil {
		return nil, err
	}
	processor, err := s.Processor()
	if err != nil {
		return nil, err
	}
	ck, err := withVocabulary(s)
	if err != nil {
		return nil, err
	}
	pool := kernel.NewPool(threads)
	defer pool.Close()
	maker := newWeightMaker(pool)
	e, err := engine.New(ck, eo, engine.Hooks{Weights: maker.make, Processor: processor})
	return e, errors.Join(maker.err, err)
}

// withVocabulary is the shape's configuration with a tokenizer for its whole vocabulary: the
// embedded model's, extended with made-up words.
func withVocabulary(s *shape.Shape) (*checkpoint.Store, error) {
	ck, err := checkpoint.FromConfig(s.Name, s.Config)
	if err != nil {
		return nil, err
	}
	embedded, err := formats.Files{}.Open()
	if err != nil {
		return nil, err
	}
	defer embedded.Close()
	model := embedded.Parts()
	ck.Docs.Template, ck.Docs.Specials, ck.Docs.Generation = model.Template, model.Specials,
		model.Generation
	var config struct {
		Image int `json:"image_token_index"`
		Text  struct {
			Vocab int `json:"vocab_size"`
		} `json:"text_config"`
	}
	if err := json.Unmarshal(s.Config, &config); err != nil {
		return nil, err
	}
	if config.Image == 0 || config.Text.Vocab <= config.Image {
		return nil, cli.Flagf("shape", "got %s, want one of LLaVA's with image_token_index below "+
			"vocab_size", s.Name)
	}
	ck.Docs.Tokenizer.Data, err = longTokenizer(model.Tokenizer.Data, config.Image)
	return ck, err
}

// longTokenizer returns a tokenizer.json whose <image> has the given id, with words for all ids
// below.
func longTokenizer(data []byte, image int) ([]byte, error) {
	var t map[string]any
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, err
	}
	vocab := t["model"].(map[string]any)["vocab"].(map[string]any)
	for id := len(vocab); id < image; id++ {
		vocab[fmt.Sprintf("▁w%d", id)] = id
	}
	var added []any
	for _, x := range t["added_tokens"].([]any) {
		token := x.(map[string]any)
		switch token["content"] {
		case "<image>":
			token["id"] = image
		case "<pad>":
			continue
		}
		added = append(added, token)
	}
	t["added_tokens"] = added
	return json.Marshal(t)
}

package cli

import (
	"fmt"
	"log/slog"
	"strconv"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
)

// EngineFlags say which model to load, and the limits of its requests.
type EngineFlags struct {
	Flags *pflag.FlagSet
	Model ModelFlags

	context, Parallel, Queue int
	memory                   memoryValue
	kv, cache                int // MB
	Throughput               bool
}

// MB is the number of bytes in the unit of flags in MB.
const MB = 1_000_000

// Add declares the flags.
func (o *EngineFlags) Add(fs *pflag.FlagSet) {
	o.Flags = fs
	o.Model.Add(fs)
	fs.IntVarP(&o.context, "ctx-size", "c", 0, "at most `N` positions for question and answer")
	ShowDefault(fs, "ctx-size", "the model's")
	fs.IntVar(&o.Parallel, "parallel", 4, "answer at most `N` requests at once")
	fs.Var(&o.memory, "memory",
		"take at most this `size` of memory, as 12GB: weights, keys and values, buffers")
	ShowDefault(fs, "memory", "what is free")
	fs.IntVar(&o.kv, "kv-mb", 0, "keep keys and values in at most `N` MB")
	ShowDefault(fs, "kv-mb", "a quarter of the free memory")
	fs.IntVar(&o.cache, "cache-mb", 256, "keep reduced pictures in at most `N` MB; 0: none")
	Within(fs, 1, MaxCount, "ctx-size", "kv-mb")
	Within(fs, 1, 256, "parallel")
	Within(fs, 0, MaxCount, "cache-mb")
}

// AddQueue declares the length of the queue, for commands with outside clients.
func (o *EngineFlags) AddQueue(fs *pflag.FlagSet) {
	fs.IntVar(&o.Queue, "queue", 64, "let at most `N` requests wait; 0: none")
	Within(fs, 0, MaxCount, "queue")
}

// MaxCount limits flags that count something.
const MaxCount = 1 << 30

// memoryValue is the value of --memory in bytes; 0: no limit.
type memoryValue int64

// Set implements pflag.Value.
func (v *memoryValue) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil || n < MB || n > 1<<50 {
		return &errs.OptionError{Name: "memory", Got: strconv.Quote(text),
			Want: "a size from 1MB to 1PB, as 12GB"}
	}
	*v = memoryValue(n)
	return nil
}

// String implements pflag.Value.
func (v *memoryValue) String() string {
	if *v == 0 {
		return ""
	}
	return humanize.Bytes(uint64(*v))
}

// Type implements pflag.Value.
func (v *memoryValue) Type() string { return "size" }

// MemoryBytes is the limit of the process's memory; 0: none.
func (o *EngineFlags) MemoryBytes() int64 { return int64(o.memory) }

// Options are the options of the model; the caller must call end after it is open.
func (o *EngineFlags) Options(
	a *App, log *slog.Logger,
) (_ *restore.Options, end func(), err error) {
	mo, end, err := o.Model.Options(a)
	if err != nil {
		return nil, nil, err
	}
	mo.MemoryBytes = o.MemoryBytes()
	mo.Parallel, mo.Queue, mo.Context = o.Parallel, o.Queue, o.context
	mo.Throughput = o.Throughput
	mo.KVBytes, mo.FeatureBytes = int64(o.kv)*MB, int64(o.cache)*MB
	if o.Queue == 0 {
		mo.Queue = -1 // no queue
	}
	if o.cache == 0 {
		mo.FeatureBytes = -1 // no cache
	}
	mo.Warn = func(s string) { log.Warn(OneLine(s)) }
	mo.Panicked = func(v any, stack []byte) {
		log.Error("panic", "panic", fmt.Sprint(v), "stack", string(stack))
	}
	return mo, end, nil
}

package kernel

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// implementation is a level of assembly, slowest first.
type implementation int32

const (
	implGo implementation = iota
	implAVX2
	implAVXVNNI // AVX2, with integer products by AVX-VNNI
	implAVX512
	implAMX  // AVX-512, with products of many rows by AMX
	implNEON // of arm64, for products
)

var implNames = [...]string{
	implGo: "go", implAVX2: "avx2", implAVXVNNI: "avxvnni", implAVX512: "avx512", implAMX: "amx",
	implNEON: "neon",
}

var (
	available [len(implNames)]*isa // nil: not on this CPU or in this build
	current   atomic.Pointer[isa]
	implError error
)

func init() {
	for i := range implNames {
		if s, ok := detect(implementation(i)); ok {
			s = s.fast()
			available[i] = &s
			current.Store(&s) // the last one is the fastest
		}
	}
	implError = implFromEnvironment(os.Getenv("KERNEL"))
}

func implFromEnvironment(name string) error {
	if name == "" {
		return nil
	}
	if err := SetImplementation(name); err != nil {
		return fmt.Errorf("environment variable KERNEL: %w", err)
	}
	return nil
}

// computing returns the instructions that kernels use.
func computing() isa { return *current.Load() }

// choice returns the implementation in use.
func choice() implementation { return computing().impl }

// impl returns the implementation in use for operations other than products. An operation reads it
// once per call.
func impl() implementation { return computing().level() }

// Implementation returns the name of the implementation in use: "go", "avx2", "avxvnni", "avx512",
// "amx" or "neon".
func Implementation() string { return implNames[choice()] }

// Implementations returns the names of those that this build and this CPU can run, slowest first.
func Implementations() []string {
	var names []string
	for i, s := range available {
		if s != nil {
			names = append(names, implNames[i])
		}
	}
	return names
}

// Features are instructions that the implementation in use multiplies with.
type Features struct {
	VNNI  bool // sums of products of 8-bit integers
	BF16  bool // sums of products of bfloat16
	Words bool // products of Q12 are faster than of F16, BF16 and F32
}

// InUse returns the features of the implementation in use.
func InUse() Features { return computing().features() }

// SetImplementation chooses the implementation by name. It must not be called while an operation
// runs. For a name that is unknown, or that the CPU or the build lacks, it returns an error and
// keeps the choice.
func SetImplementation(name string) error {
	for i, n := range implNames {
		if n != name {
			continue
		}
		if available[i] == nil {
			return fmt.Errorf(
				"kernel: implementation %q: not available on this CPU or in this build, want %s",
				name, strings.Join(Implementations(), "|"))
		}
		current.Store(available[i])
		return nil
	}
	return fmt.Errorf("kernel: implementation %q: unknown, want %s", name,
		strings.Join(Implementations(), "|"))
}

// ImplementationError returns an error if the environment variable KERNEL had an invalid value at
// start, or nil.
func ImplementationError() error { return implError }

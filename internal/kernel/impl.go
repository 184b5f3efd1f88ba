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
	currentImpl atomic.Int32
	implError   error
)

func init() {
	currentImpl.Store(int32(bestImpl()))
	implError = implFromEnvironment(os.Getenv("KERNEL"))
}

func implFromEnvironment(name string) error {
	if name == "" {
		return nil
	}
	if err := SetImplementation(name); err != nil {
		return fmt.Errorf("environment variable KERNEL: %w; using %s", err, Implementation())
	}
	return nil
}

// choice returns the implementation in use.
func choice() implementation { return implementation(currentImpl.Load()) }

// impl returns the implementation for operations other than products: implAVX2 for implAVXVNNI, and
// implAVX512 for implAMX. An operation reads it once per call.
func impl() implementation {
	switch c := choice(); c {
	case implAVXVNNI:
		return implAVX2
	case implAMX:
		return implAVX512
	default:
		return c
	}
}

// Implementation returns the name of the implementation in use: "go", "avx2", "avxvnni", "avx512",
// "amx" or "neon".
func Implementation() string { return implNames[choice()] }

// Implementations returns the names of those that this build and this CPU can run, slowest first.
func Implementations() []string {
	var names []string
	for i, n := range implNames {
		if hasImpl(implementation(i)) {
			names = append(names, n)
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
func InUse() Features { return features(choice()) }

func bestImpl() implementation {
	best := implGo
	for i := range implNames {
		if hasImpl(implementation(i)) {
			best = implementation(i)
		}
	}
	return best
}

// SetImplementation chooses the implementation by name. It must not be called while an operation
// runs. For a name that is unknown, or that the CPU or the build lacks, it returns an error and
// keeps the choice.
func SetImplementation(name string) error {
	for i, n := range implNames {
		if n != name {
			continue
		}
		if !hasImpl(implementation(i)) {
			return fmt.Errorf(
				"kernel: implementation %q: not available on this CPU or in this build, want %s",
				name, strings.Join(Implementations(), "|"))
		}
		currentImpl.Store(int32(i))
		return nil
	}
	return fmt.Errorf("kernel: implementation %q: unknown, want %s", name,
		strings.Join(Implementations(), "|"))
}

// ImplementationError returns an error if the environment variable KERNEL or KERNEL_PLAN had an
// invalid value at start, or nil.
func ImplementationError() error {
	if implError != nil {
		return implError
	}
	return planError
}

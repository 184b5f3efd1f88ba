package kernel

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// implementation is a level of assembly; a higher one includes the lower ones.
type implementation int32

const (
	implGo implementation = iota
	implAVX2
	implAVX512
)

var implNames = [...]string{implGo: "go", implAVX2: "avx2", implAVX512: "avx512"}

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

// impl is the implementation in use; an operation reads it once a call.
func impl() implementation { return implementation(currentImpl.Load()) }

// Implementation names the implementation in use: "go", "avx2" or "avx512".
func Implementation() string { return implNames[impl()] }

// Implementations names those that this build and this CPU can run, slowest
// first.
func Implementations() []string {
	return append([]string(nil), implNames[:bestImpl()+1]...)
}

// SetImplementation chooses the implementation by name. It must not be called
// while an operation runs. A name that is unknown or that the CPU or the build
// lacks is an error, and the choice stays as it was.
func SetImplementation(name string) error {
	for i, n := range implNames {
		if n != name {
			continue
		}
		if implementation(i) > bestImpl() {
			return fmt.Errorf("kernel: implementation %q: not available on this CPU or in this build, want %s",
				name, strings.Join(Implementations(), "|"))
		}
		currentImpl.Store(int32(i))
		return nil
	}
	return fmt.Errorf("kernel: implementation %q: unknown, want %s", name, strings.Join(Implementations(), "|"))
}

// ImplementationError reports a value of the environment variable KERNEL that
// could not be honoured at start, or nil.
func ImplementationError() error { return implError }

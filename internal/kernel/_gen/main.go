// Command _gen writes the assembly of package kernel and its Go declarations:
//
//	go run . -kernel matmul
//
// writes ../matmul_amd64.s and ../matmul_stub_amd64.go; a kernel of arm64 gets files of that
// architecture. table.go lists the kernels. The output depends only on this module, byte for byte.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	name := flag.String("kernel", "", "name of the kernel in table.go")
	dir := flag.String("dir", "..", "folder to write to")
	evex := flag.Bool("evex", false,
		"instructions of AVX-VNNI in the encoding of AVX-512, to test them where that is at hand")
	flag.Parse()
	gen, ok := kernels[*name]
	if !ok {
		fmt.Fprintf(os.Stderr, "_gen: -kernel %q: not in table.go\n", *name)
		os.Exit(2)
	}
	a := &asm{wideVNNI: *evex}
	gen(a)
	arch := "amd64"
	if *name == "neon" {
		arch = "arm64"
	}
	for suffix, text := range map[string]string{
		"_" + arch + ".s": a.source(), "_stub_" + arch + ".go": a.stubs(),
	} {
		if err := os.WriteFile(filepath.Join(*dir, *name+suffix), []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "_gen:", err)
			os.Exit(1)
		}
	}
}

package checkpoint

import (
	"crypto/sha256"
	"fmt"
	"hash"
)

// Of a tensor's bytes, a digest covers digestParts parts of digestPart bytes, spread from the first
// to the last, or all bytes if there are not more.
const (
	digestPart  = 4 << 10
	digestParts = 4
)

// Digest identifies a model by all its documents, and by every weight's name, shape, type and a
// sample of its bytes, or their checksum if the file records one. It does not depend on the place
// or names of the files, and reads a few megabytes. Models that were trained differently have
// different digests. A file that is damaged in one place may have the same digest.
func Digest(b Bundle) [sha256.Size]byte {
	h := sha256.New()
	b.Parts().Each(func(name string, p *Part) {
		fmt.Fprintf(h, "%s %d\n", name, len(p.Data))
		h.Write(p.Data)
	})
	for _, name := range b.Names() {
		w, ok := b.Tensor(name)
		if !ok {
			continue
		}
		fmt.Fprintf(h, "%q %v %s\n", name, w.Shape, w.TypeName())
		if w.Sum != nil {
			fmt.Fprintf(h, "%d %x\n", len(w.Data), w.Sum)
			continue
		}
		sample(h, w.Data)
		for _, raw := range w.Raw {
			sample(h, raw)
		}
		b.Drop() // the system reads far more around a sample
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// sample writes b's length and the parts that a digest covers.
func sample(h hash.Hash, b []byte) {
	fmt.Fprintf(h, "%d\n", len(b))
	if len(b) <= digestPart*digestParts {
		h.Write(b)
		return
	}
	last := len(b) - digestPart
	for i := range digestParts {
		at := last / (digestParts - 1) * i
		if i == digestParts-1 {
			at = last
		}
		h.Write(b[at : at+digestPart])
	}
}

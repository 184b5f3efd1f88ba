package checkpoint

import "runtime"

// Warm reads every page of the mapped weights once, in the files' order, so that
// the first request does not wait for the disk. progress is called about every
// 64 MiB and at the end with the bytes read.
func (c *Checkpoint) Warm(progress func(done, total int64)) {
	const page, step = 4096, 64 << 20
	var done, next int64
	var sum byte
	for _, name := range c.names {
		data := c.tensors[name].Data
		for i := 0; i < len(data); i += page {
			sum += data[i]
		}
		if done += int64(len(data)); done >= next {
			progress(done, c.bytes)
			next = done + step
		}
	}
	runtime.KeepAlive(sum) // the reads are the purpose
	progress(c.bytes, c.bytes)
}

// Drop lets go of the pages of mapped weights that were read so far. They remain
// in the system's cache and are read again when they are used.
func (c *Checkpoint) Drop() {
	for _, m := range c.files {
		if m.drop != nil {
			m.drop()
		}
	}
}

//go:build !purego

package kernel

// fmaPerRound returns the number of scalar multiply-adds in a round of fmaLoop.
func fmaPerRound() int {
	if impl() == implGo {
		return 4
	}
	return 24 * 4
}

func fmaLoop(rounds int) {
	if impl() == implGo {
		sink(fmaLoopGo(rounds))
		return
	}
	fmaLoopNEON(rounds)
}

// dotPerRound returns the number of byte multiply-adds in a round of dotLoop.
func dotPerRound() int {
	if impl() == implGo {
		return fmaPerRound()
	}
	return 24 * 16
}

func dotLoop(rounds int) {
	if impl() == implGo {
		fmaLoop(rounds)
		return
	}
	dotLoopNEON(rounds)
}

func nibblePerRound() int { return dotPerRound() }

func nibbleLoop(rounds int) { dotLoop(rounds) }

func wordPerRound() int { return fmaPerRound() }

func wordLoop(rounds int) { fmaLoop(rounds) }

func bf16PerRound() int { return fmaPerRound() }

func bf16Loop(rounds int) { fmaLoop(rounds) }

func readLoop(b []byte) {
	if impl() == implGo {
		sink(float32(readLoopGo(b)))
		return
	}
	readLoopNEON(&b[0], len(b))
}

//go:build !(amd64 || arm64) || purego

package kernel

func fmaPerRound() int { return 4 }

func fmaLoop(rounds int) { sink(fmaLoopGo(rounds)) }

func dotPerRound() int { return fmaPerRound() }

func dotLoop(rounds int) { fmaLoop(rounds) }

func nibblePerRound() int { return fmaPerRound() }

func nibbleLoop(rounds int) { fmaLoop(rounds) }

func wordPerRound() int { return fmaPerRound() }

func wordLoop(rounds int) { fmaLoop(rounds) }

func bf16PerRound() int { return fmaPerRound() }

func bf16Loop(rounds int) { fmaLoop(rounds) }

func readLoop(b []byte) { sink(float32(readLoopGo(b))) }

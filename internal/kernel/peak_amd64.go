//go:build !purego

package kernel

//go:generate sh -c "cd _gen && go run . -kernel peak"

// fmaPerRound returns the number of scalar multiply-adds in a round of fmaLoop.
func fmaPerRound() int {
	switch impl() {
	case implAVX512:
		return 12 * 16
	case implAVX2:
		return 12 * 8
	}
	return 4
}

func fmaLoop(rounds int) {
	switch impl() {
	case implAVX512:
		fmaLoopAVX512(rounds)
	case implAVX2:
		fmaLoopAVX2(rounds)
	default:
		sink(fmaLoopGo(rounds))
	}
}

// dotPerRound returns the number of byte multiply-adds in a round of dotLoop.
func dotPerRound() int {
	switch {
	case choice() == implAMX:
		return 2 * tilePerRound
	case computing().vnni:
		return 12 * 64
	case choice() == implAVXVNNI:
		return 12 * 32
	case impl() != implGo:
		return 4 * 32
	}
	return fmaPerRound()
}

func dotLoop(rounds int) {
	switch {
	case choice() == implAMX:
		tileLoopBytesAMX(&tileConfig[0], &tileData[0], max(1, rounds/tileRounds))
	case computing().vnni:
		dotLoopVNNI(rounds)
	case choice() == implAVXVNNI:
		dotLoopAVXVNNI(rounds)
	case impl() != implGo:
		dotLoopAVX2(rounds)
	default:
		fmaLoop(rounds)
	}
}

// nibblePerRound and nibbleLoop are the same for 4 bits.
func nibblePerRound() int {
	if computing().madd() {
		return 12 * 32
	}
	return dotPerRound()
}

func nibbleLoop(rounds int) {
	if computing().madd() {
		nibbleLoopAVX2(rounds)
	} else {
		dotLoop(rounds)
	}
}

// wordPerRound and wordLoop are the same for int16.
func wordPerRound() int {
	switch {
	case computing().vnni:
		return 12 * 32
	case impl() != implGo: // also of AVX-VNNI
		return 12 * 16
	}
	return fmaPerRound()
}

func wordLoop(rounds int) {
	switch {
	case computing().vnni:
		wordLoopVNNI(rounds)
	case choice() == implAVXVNNI:
		wordLoopAVXVNNI(rounds)
	case impl() != implGo:
		wordLoopAVX2(rounds)
	default:
		fmaLoop(rounds)
	}
}

func bf16PerRound() int {
	if choice() == implAMX {
		return tilePerRound
	}
	if computing().bf16 {
		return 16 * 32
	}
	return fmaPerRound()
}

func bf16Loop(rounds int) {
	if choice() == implAMX {
		tileLoopAMX(&tileConfig[0], &tileData[0], max(1, rounds/tileRounds))
		return
	}
	if computing().bf16 {
		dotLoopBF16(rounds)
		return
	}
	fmaLoop(rounds)
}

// tilePerRound is the number of multiply-adds that count for one round of bfloat16 tiles, half of
// those in int8. Tiles do far more per round than the other loops, so their rounds are divided by
// tileRounds.
const (
	tilePerRound = tileRows * tileRows * 32 * 4 / tileRounds
	tileRounds   = 32
)

// tileData is four tiles of bfloat16 between -2 and 2.
var tileData = func() (d [4 * tileBytes]byte) {
	state := uint32(1)
	for i := range d {
		state = state*1664525 + 1013904223
		d[i] = byte(state >> 24)
		if i%2 == 1 {
			d[i] = d[i]&0x80 | 0x3f
		}
	}
	return d
}()

func readLoop(b []byte) {
	switch impl() {
	case implAVX512:
		readLoopAVX512(&b[0], len(b))
	case implAVX2:
		readLoopAVX2(&b[0], len(b))
	default:
		sink(float32(readLoopGo(b)))
	}
}

package main

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// weightMaker makes random weights that neither grow nor shrink activations from layer to layer: a
// matrix has variance 1/in, a norm's weights are around 1, biases around 0. It writes directly in
// the final type, from a small store of random panels or rows, in another order for each weight.
type weightMaker struct {
	pool   *kernel.Pool
	stores map[storeKey]*tensor.Tensor
	made   map[string]*tensor.Tensor // by name, because a tied weight is bound twice
	err    error
}

type storeKey struct {
	d tensor.DType
	k int
}

// storeRows is the number of rows in a store: eight panels of quantised weights.
const storeRows = 256

func newWeightMaker(pool *kernel.Pool) *weightMaker {
	return &weightMaker{
		pool: pool, stores: map[storeKey]*tensor.Tensor{}, made: map[string]*tensor.Tensor{},
	}
}

// make implements engine.Options.Weights.
func (w *weightMaker) make(
	m *kernel.Memory, name string, d tensor.DType, shape []int,
) *tensor.Tensor {
	if t := w.made[name]; t != nil {
		return t
	}
	t := &tensor.Tensor{DType: d, Shape: shape}
	seed := nameSeed(name)
	if len(shape) == 1 {
		t.Data = vector(seed, shape[0], strings.HasSuffix(name, ".weight"))
		t.DType = tensor.F32
	} else {
		n, k := shape[0], 1
		for _, s := range shape[1:] {
			k *= s
		}
		t.Data = m.Bytes(nn.WeightBytes(d, n, k))
		store := w.store(d, k)
		if store == nil {
			return t // w.err has the error
		}
		w.fill(t.Data, store.Data, d, k, seed)
	}
	w.made[name] = t
	return t
}

func nameSeed(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// vector is n numbers between -0.1 and 0.1, or around 1 if scales is set.
func vector(seed uint64, n int, scales bool) []byte {
	r := rand.New(rand.NewPCG(seed, 4))
	b := make([]byte, 4*n)
	for i := range n {
		v := 0.2*r.Float32() - 0.1
		if scales {
			v++
		}
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	return b
}

// store returns storeRows rows of k random numbers of variance 1/k in type d.
func (w *weightMaker) store(d tensor.DType, k int) *tensor.Tensor {
	key := storeKey{d, k}
	if s := w.stores[key]; s != nil {
		return s
	}
	v := make([]float32, storeRows*k)
	scale := 2 * float32(math.Sqrt(3/float64(k)))
	r := rand.New(rand.NewPCG(uint64(k), 5))
	for i := range v {
		v[i] = scale * (r.Float32() - 0.5)
	}
	made, err := nn.Convert(w.pool, nil, kernel.MatrixF32(storeRows, k, v), d, func(int) {})
	if err != nil {
		w.err = err
		return nil
	}
	w.stores[key] = &tensor.Tensor{DType: d, Shape: []int{storeRows, k}, Data: made.Data}
	return w.stores[key]
}

// fill fills dst with whole rows or panels of store, each rotated by another number of blocks.
func (w *weightMaker) fill(dst, store []byte, d tensor.DType, k int, seed uint64) {
	rows, block := 1, 32*d.Bits()/8 // rows stored together; bytes moved together
	unit := len(store) / storeRows
	switch d {
	case tensor.Q8, tensor.Q4, tensor.Q4M:
		rows = 32
		block = rows * unit / ((k + 31) / 32)
	case tensor.BF16Dot:
		rows, block = 64, 1024
	case tensor.Q12:
		rows = 16
		block = rows * unit / ((k + 127) / 128)
	}
	unit *= rows
	turns := max(1, unit/block)
	units := len(store) / unit
	w.pool.Run((len(dst)+unit-1)/unit, func(i int) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		to := dst[i*unit : min(len(dst), (i+1)*unit)]
		from := store[r.IntN(units)*unit:][:unit]
		n := copy(to, from[r.IntN(turns)*block:])
		copy(to[n:], from)
	})
}

// Package kernel does the engine's arithmetic on flat slices: products with weights in their stored
// type, attention, norms, activations, rotations.
//
// Shapes are row-major with the last axis fastest; weights are [out, in]. Every operation has a
// reference in Go that is always compiled. On amd64 it also has assembly variants, chosen once at
// start by the CPU's features:
//
//	go      the reference (the only one under -tags purego or on other CPUs)
//	avx2    AVX2, FMA and F16C
//	avx512  also AVX-512 F, BW, VL and DQ
//	amx     also AMX tiles of bfloat16, for products of many rows with packed
//	        weights; the system must let the process use them
//
// The environment variable KERNEL, or [SetImplementation], overrides the choice; [Implementation]
// returns the one in use.
//
// Work is split over outputs, never over a sum, so the result of every operation is the same to the
// last bit for any number of threads. Implementations sum in different orders, so their last bits
// differ.
//
// A slice that is too short is a programmer's mistake and panics with a message that begins with
// "kernel." and the function's name; nothing else here panics. The module in _gen generates the
// assembly, which is committed.
package kernel

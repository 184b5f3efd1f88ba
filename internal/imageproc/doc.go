// Package imageproc turns picture files into the float32 tensors that vision
// towers read.
//
// Two steps, each usable alone:
//
//	Decode          bytes → Picture: 8-bit RGB, upright, alpha resolved
//	Processor       Pictures → Pixels: resized, cropped, normalised
//
// A [Processor] is built from a checkpoint's preprocessor_config.json by
// [ParseProcessor]. The families of models say which [Kind] their class in
// transformers is: [CLIP] (with the original LLaVA's pad-to-square as the field Pad), [Tiles] or
// [Patches].
//
// # Exactness
//
// Resampling repeats the 8-bit arithmetic of Pillow (fixed point with 22 fractional bits,
// horizontal pass first, the intermediate picture rounded to bytes), and a pixel value is a table
// lookup on the resampled byte. For the same 8-bit picture, Pixels are bit-equal to the pixels
// from transformers' slow (PIL) processors. Decoding gives the bytes of Pillow 13 with
// libjpeg-turbo and libwebp, of a JPEG whose scans are complete: an incomplete progressive one is
// not smoothed.
//
// # Departures
//
//   - 16-bit grey is read by its high byte. Pillow clips such pictures at 255,
//     which makes nearly everything white.
//   - Of some valid files Pillow does not read what their format says; here the format holds:
//     the transparent colour of PNGs with 2, 4 or 16 bits, a GIF frame's own palette of greys
//     next to a global one, BMPs with alpha in 16 bits, with greys in 4 bits, and with odd
//     numbers of literal pixels in RLE4, TIFFs that are white at 0 in 16 bits, and uncompressed
//     ones in separate planes of 16 bits or with halved chroma.
//   - The passes of the resampler always run horizontally first, as in every
//     Pillow before 12.2, with which published models were made.
//   - Variants that are not supported are refused with an error that names the
//     variant: JPEG with arithmetic, lossless or hierarchical coding or 12 bits,
//     and in TIFF colour spaces other than grey, RGB, palette, CMYK and YCbCr,
//     signed or floating-point samples, and compressions other than LZW, Deflate,
//     PackBits, JPEG and CCITT.
package imageproc

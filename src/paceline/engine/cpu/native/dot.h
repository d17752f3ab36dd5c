// Products of a group of 32 columns of 16 rows with int8 activations: exact sums of integers, for one level each.
//
// A level offers `Rows` and `IntRows`, a float or an integer for each of 16 rows, and `dots<F, N>`, the integer products of
// N rows of activations with the codes of one group:
//
//   out[n][row] = sum over columns of q[row][column] * a[n][column]
//
// over the columns that share a scale, half 0 or 1 of the group in formats with two, else all 32 of them (half 0); q is what
// F means, that is minus 8 for offset formats.
#pragma once

#include "activations.h"
#include "formats.h"
#include "simd.h"

// Loops over registers have to vanish; both compilers must be told when they are long.
#if defined(__clang__)
#define PACELINE_UNROLL _Pragma("unroll")
#else
#define PACELINE_UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(__AVX512VNNI__)
#include "dot_avx512.h"
#elif defined(__AVX2__)
#include "dot_avx2.h"
#else
#include "dot_plain.h"
#endif

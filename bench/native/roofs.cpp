// What the machine gives at most: bytes read from memory, and products of 8-bit integers.
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
int64_t read(const uint8_t *data, int64_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (int64_t i = 0; i < bytes; i += 256) {
    a = _mm512_xor_si512(a, _mm512_load_si512(data + i));
    b = _mm512_xor_si512(b, _mm512_load_si512(data + i + 64));
    c = _mm512_xor_si512(c, _mm512_load_si512(data + i + 128));
    d = _mm512_xor_si512(d, _mm512_load_si512(data + i + 192));
  }
  return _mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
}
#elif defined(__AVX2__)
int64_t read(const uint8_t *data, int64_t bytes) {
  __m256i sums[4] = {};
  for (int64_t i = 0; i < bytes; i += 128) {
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(reinterpret_cast<const __m256i *>(data + i + 32 * j)));
    }
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return _mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 1);
}
#else
int64_t read(const uint8_t *data, int64_t bytes) {
  const int64_t *words = reinterpret_cast<const int64_t *>(data);
  int64_t sums[8] = {}, all = 0;
  for (int64_t i = 0; i < bytes / 8; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] ^= words[i + j];
  }
  for (int64_t sum : sums) all ^= sum;
  return all;
}
#endif

// Eight chains of independent products, operands in registers. Returns what was computed, so that it is not left out.
int64_t multiply(int64_t rounds) {
#if defined(__AVX512VNNI__)
  __m512i sums[12] = {}, a = _mm512_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto &sum : sums) sum = _mm512_dpbusd_epi32(sum, a, a);
  }
  int64_t all = 0;
  for (auto &sum : sums) all += _mm512_reduce_add_epi32(sum);
  return all;
#elif defined(__AVX2__)
  // Sums of 16 bits, which eight products of 4-bit codes may fill before they are widened: two instructions of three.
  __m256i sums[12] = {}, a = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto &sum : sums) {
      __asm__("" : "+x"(a));  // otherwise the product leaves the loop
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, a));
    }
  }
  int64_t all = 0;
  for (auto &sum : sums) all += _mm256_extract_epi16(sum, 0);
  return all;
#else
  int32_t sums[64] = {};
  int8_t a[64];
  for (int j = 0; j < 64; ++j) a[j] = int8_t(j);
  for (int64_t i = 0; i < rounds; ++i) {
    __asm__("" : : "r"(a) : "memory");
    for (int j = 0; j < 64; ++j) sums[j] += int32_t(a[j]) * a[j];
  }
  int64_t all = 0;
  for (int32_t sum : sums) all += sum;
  return all;
#endif
}

#if defined(__AVX512VNNI__)
constexpr int64_t kProducts = 12 * 64;
#elif defined(__AVX2__)
constexpr int64_t kProducts = 12 * 32;
#else
constexpr int64_t kProducts = 64;
#endif

template <typename Work>
int64_t on_threads(int threads, Work work) {
  std::vector<std::thread> running;
  std::vector<int64_t> found(static_cast<size_t>(threads));
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] { found[static_cast<size_t>(t)] = work(t); });
  }
  int64_t all = 0;
  for (int t = 0; t < threads; ++t) {
    running[static_cast<size_t>(t)].join();
    all ^= found[static_cast<size_t>(t)];
  }
  return all;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// `data` lies at a multiple of 64 bytes; each thread reads its share, a multiple of 256 bytes.
EXPORT int64_t read_memory(const uint8_t *data, int64_t bytes, int32_t threads) {
  const int64_t share = bytes / threads / 256 * 256;
  return on_threads(threads, [&](int t) { return read(data + t * share, share); });
}

EXPORT int64_t multiply_integers(int64_t rounds, int32_t threads) {
  return on_threads(threads, [&](int) { return multiply(rounds); });
}

EXPORT int64_t products_of_a_round(void) { return kProducts; }

// Memory of a step that outlives it, so that steps allocate nothing once they have seen their largest batch.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace paceline {

// `count` values on a cache line of their own, not initialised. Growing forgets what was there.
template <typename T>
class Buffer {
 public:
  void require(size_t count) {
    if (count <= count_) return;
    const size_t bytes = (count * sizeof(T) + kLine - 1) / kLine * kLine;
    data_.reset(static_cast<T *>(std::aligned_alloc(kLine, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    count_ = count;
  }
  T *get() const { return data_.get(); }

 private:
  static constexpr size_t kLine = 64;
  struct Free {
    void operator()(T *p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t count_ = 0;
};

}  // namespace paceline

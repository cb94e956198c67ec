// Memory that ends right before a page that cannot be touched, or starts right behind one.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <utility>

namespace headwise::testing {

enum class Side { kEnd, kStart };  // where memory and page meet

class GuardedMemory {
 public:
  GuardedMemory() = default;
  GuardedMemory(size_t bytes, Side side) : bytes_(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    mapped_ = inside + 2 * page;
    void* all = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) std::abort();
    base_ = static_cast<char*>(all);
    open_ = inside;
    protect(PROT_READ | PROT_WRITE);
    data_ = base_ + page + (side == Side::kEnd ? inside - bytes : 0);
  }
  GuardedMemory(GuardedMemory&& other) noexcept { swap(other); }
  GuardedMemory& operator=(GuardedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GuardedMemory() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  // From here on, writing is a fault as well.
  void seal() { protect(PROT_READ); }

 private:
  void protect(int rights) {
    if (open_ == 0) return;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (mprotect(base_ + page, open_, rights) != 0) std::abort();
  }
  void swap(GuardedMemory& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    std::swap(open_, other.open_);
  }

  char* base_ = nullptr;
  char* data_ = nullptr;
  size_t bytes_ = 0, mapped_ = 0, open_ = 0;
};

}  // namespace headwise::testing

#include "dispatch.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#define HEADWISE_FOR_EACH_ISA(X) X(scalar) X(avx2) X(avx512) X(avx512_bf16)
#elif defined(__aarch64__)
#define HEADWISE_FOR_EACH_ISA(X) X(scalar) X(neon)
#else
#define HEADWISE_FOR_EACH_ISA(X) X(scalar)
#endif

namespace headwise {

#define HEADWISE_DECLARE(isa)        \
  namespace isa {                    \
  KernelTable make_table() noexcept; \
  }
HEADWISE_FOR_EACH_ISA(HEADWISE_DECLARE)

namespace {

struct Candidate {
  KernelTable table;
  bool runs_here;
};

bool runs_here(const std::string& name) {
#if defined(__x86_64__)
  if (name == "avx2") {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  }
  if (name == "avx512" || name == "avx512_bf16") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           (name == "avx512" ||
            (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")));
  }
#endif
  return name == "scalar" || name == "neon";
}

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> all = [] {
    std::vector<Candidate> found;
#define HEADWISE_ADD(isa) found.push_back({isa::make_table(), runs_here(#isa)});
    HEADWISE_FOR_EACH_ISA(HEADWISE_ADD)
    return found;
  }();
  return all;
}

const KernelTable& named(const std::string& name) {
  std::string known;
  for (const Candidate& candidate : candidates()) {
    if (!candidate.runs_here) continue;
    if (name == candidate.table.name) return candidate.table;
    known += (known.empty() ? "" : ", ") + std::string(candidate.table.name);
  }
  throw std::invalid_argument("instruction set '" + name + "' is not available here; there are " +
                              known);
}

const KernelTable& first_choice() {
  const char* wanted = std::getenv("HEADWISE_ISA");
  if (wanted == nullptr || *wanted == '\0') return named(available_sets().back());
  try {
    return named(wanted);
  } catch (const std::invalid_argument& unknown) {
    throw std::invalid_argument(std::string("HEADWISE_ISA: ") + unknown.what());
  }
}

std::atomic<const KernelTable*>& in_use() {
  static std::atomic<const KernelTable*> table{&first_choice()};
  return table;
}

}  // namespace

std::vector<std::string> available_sets() {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates()) {
    if (candidate.runs_here) names.emplace_back(candidate.table.name);
  }
  return names;
}

const KernelTable& kernels() { return *in_use().load(std::memory_order_acquire); }

void use_set(const std::string& name) { in_use().store(&named(name), std::memory_order_release); }

}  // namespace headwise

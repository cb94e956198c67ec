// The kernels without Python: a plain program, for the sanitizers and other processors.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "dispatch.h"
#include "report.h"
#include "subjects.h"

namespace {

constexpr int64_t kCases = 240;
constexpr int64_t kQuickCases = 45;

int explain(const char* program) {
  std::fprintf(stderr,
               "%s [--isa NAME] [--cases N] [--first N] [--quick] [--count CALL]\n"
               "  --isa NAME   this instruction set alone; may be given again\n"
               "  --cases N    so many drawn calls (%d), --quick: %d\n"
               "  --first N    from this one on; `--first N --cases 1` repeats a fault\n"
               "  --count CALL only runs forward, decode or backward once, on the set named\n",
               program, static_cast<int>(kCases), static_cast<int>(kQuickCases));
  return 2;
}

}  // namespace

int main(int count, char** words) {
  headwise::testing::Plan plan;
  std::string counted;
  plan.cases = kCases;
  for (int i = 1; i < count; ++i) {
    const bool more = i + 1 < count;
    if (std::strcmp(words[i], "--quick") == 0) {
      plan.cases = kQuickCases;
    } else if (std::strcmp(words[i], "--isa") == 0 && more) {
      plan.sets.emplace_back(words[++i]);
    } else if (std::strcmp(words[i], "--cases") == 0 && more) {
      plan.cases = std::atoll(words[++i]);
    } else if (std::strcmp(words[i], "--first") == 0 && more) {
      plan.first = std::atoll(words[++i]);
    } else if (std::strcmp(words[i], "--count") == 0 && more) {
      counted = words[++i];
    } else {
      return explain(words[0]);
    }
  }
  try {
    for (const std::string& set : plan.sets) headwise::use_set(set);
    if (!counted.empty()) {
      headwise::testing::run_fixed_call(counted);
      return 0;
    }
  } catch (const std::invalid_argument& unknown) {
    std::fprintf(stderr, "%s: %s\n", words[0], unknown.what());
    return 2;
  }
  if (plan.sets.empty()) plan.sets = headwise::available_sets();
  std::printf("instruction sets:");
  for (const std::string& set : plan.sets) std::printf(" %s", set.c_str());
  std::printf("\n");
  std::fflush(stdout);  // before the children of the guards' test

  headwise::testing::report_crashes();
  bool well = headwise::testing::test_guards();
  well = headwise::testing::test_dropped_words(plan) && well;
  well = headwise::testing::test_linear_rows(plan) && well;
  well = headwise::testing::test_drawn_problems(plan) && well;
  well = headwise::testing::test_stored(plan) && well;
  well = headwise::testing::test_linear_sums(plan) && well;
  well = headwise::testing::test_random_features(plan) && well;
  std::printf("%s\n", well ? "all is well" : "FAULTS, see above");
  return well ? 0 : 1;
}

#include "comparison.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

namespace headwise::testing {

namespace {

double worst_share(const Expected& expected, const std::vector<double>& found, Bound bound,
                   size_t* where) {
  double worst = 0.0;
  if (found.size() != expected.number.size()) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < found.size(); ++i) {
    const double wanted = expected.number[i];
    double share = 0.0;
    if (!std::isfinite(wanted) || !std::isfinite(found[i])) {
      const bool alike = std::isfinite(wanted) == std::isfinite(found[i]) &&
                         (!std::isinf(wanted) || !std::isinf(found[i]) || wanted == found[i]);
      share = alike ? 0.0 : std::numeric_limits<double>::infinity();
    } else {
      const double allowed =
          bound.stored * std::fabs(wanted) + bound.inner * expected.size[i] + bound.least;
      share = wanted == found[i] ? 0.0 : std::fabs(found[i] - wanted) / allowed;
    }
    if (share > worst) {
      worst = share;
      *where = i;
    }
  }
  return worst;
}

}  // namespace

void measure(Subject& subject, const char* name, const Expected& expected,
             const std::vector<double>& found, Bound bound) {
  size_t at = 0;
  const double share = worst_share(expected, found, bound, &at);
  char what[200] = "";
  if (share > 1.0 && at < found.size()) {
    std::snprintf(what, sizeof what, "%s[%zu] is %g, not %g: %g of the bound", name, at, found[at],
                  expected.number[at], share);
  }
  subject.measure(share, what);
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!nan && std::bit_cast<uint64_t>(a[i]) != std::bit_cast<uint64_t>(b[i])) return false;
  }
  return true;
}

}  // namespace headwise::testing

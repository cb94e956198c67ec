// Positive random features: exponentials of products with directions, the largest of a row near 1.

#include "kernels/product.h"

namespace {

using headwise::FeatureArgs;
using headwise::kFeatureRows;

int64_t feature_workspace(const FeatureArgs& a) noexcept {
  return kFeatureRows * (whole_registers(a.dim) + a.wide);
}

template <class T>
void random_features(const FeatureArgs& a, int64_t task, float* workspace) noexcept {
  const int64_t block = task % a.blocks();
  const int64_t head = task / a.blocks() % a.heads;
  const int64_t batch = task / a.blocks() / a.heads;
  const int64_t first = block * kFeatureRows;
  const int64_t rows = smaller(a.length - first, kFeatureRows);
  const int64_t row = whole_registers(a.dim);
  float* input = workspace;
  float* exponents = workspace + kFeatureRows * row;
  copy_words<Widened<T>>(a.input.at<const T>(batch, head, first), a.input.row, rows, a.dim, input);
  const Vec::Reg factor = Vec::set(a.factor);
  for (int64_t i = 0; i < rows * row; i += Vec::width) {
    Vec::store(input + i, Vec::mul(Vec::load(input + i), factor));
  }
  const int64_t wide = a.wide;
  multiply<Widened<float>, false>({reinterpret_cast<const Word*>(input), row, 1}, rows,
                                  {a.directions, wide}, wide / Vec::width, a.dim,
                                  [=](int64_t i, int64_t lane, Vec::Reg sum) noexcept {
                                    Vec::store(exponents + i * wide + lane, sum);
                                  });
  const Factor natural(kLog2E);
  const int64_t number = (batch * a.heads + head) * a.length + first;
  T* to = static_cast<T*>(a.output) + number * a.count;
  for (int64_t i = 0; i < rows; ++i, to += a.count) {
    const float* from = exponents + i * wide;
    Vec::Reg most = Vec::set(kMinusInfinity);
    Vec::Reg whole = Vec::set(0.0F);  // NaN where an exponent is, which `max` may miss
    int64_t f = 0;
    for (; f + Vec::width <= a.count; f += Vec::width) most = Vec::max(most, Vec::load(from + f));
    float peak = Vec::highest(most);
    for (; f < a.count; ++f) peak = from[f] > peak ? from[f] : peak;
    Vec::Reg square = Vec::set(0.0F);
    for (int64_t c = 0; c < row; c += Vec::width) {
      const Vec::Reg x = Vec::load(input + i * row + c);
      square = Vec::fma(x, x, square);
      whole = Vec::fma(x, Vec::set(0.0F), whole);
    }
    const float odd = Vec::sum(whole);
    // A square beyond float's range would make a gain of -inf, which says that there is no key.
    const float lost = Vec::sum(square) * 0.5F;
    a.gain[number + i] = peak - lost - a.log_norm + (odd + lost * 0.0F);
    const Vec::Reg base = Vec::set(peak + odd);
    for (f = 0; f < a.count; f += Vec::width) {
      const int64_t left = smaller(a.count - f, Vec::width);
      const Vec::Reg exponent = Vec::sub(Vec::load(from + f), base);
      Vec::store_partial(to + f, Vec::add(exp2_below_zero(exponent, natural), Vec::set(a.least)),
                         left);
    }
  }
}

template <class T>
void fill(headwise::Functions& of) noexcept {
  of.feature_workspace = feature_workspace;
  of.random_features = random_features<T>;
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_random_features(KernelTable& table) noexcept {
  fill<float>(table.of[0]);
  fill<BFloat16>(table.of[1]);
  fill<Float16>(table.of[2]);
}

}  // namespace headwise::HEADWISE_ISA

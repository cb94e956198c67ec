#include "stored_keys.h"

#include <algorithm>
#include <cstring>

namespace headwise::testing {

namespace {

constexpr int32_t kNoPage = 1 << 30;
constexpr char kUnread = static_cast<char>(0x80);     // of 8 bits: -128, which rows seldom hold
constexpr char kUnreadNaN = static_cast<char>(0xFF);  // of floats

template <class T>
void append(Rows& rows, T number) {
  const size_t at = rows.bytes.size();
  rows.bytes.resize(at + sizeof number);
  std::memcpy(rows.bytes.data() + at, &number, sizeof number);
}

// With a fraction of 16 bits, so that products with 8 bits are exact.
float short_scale(double number) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(number));
  return std::bit_cast<float>(bits & 0xFFFFFF80U);
}

}  // namespace

Rows plain_rows(const Tensor& tensor, Dtype dtype) {
  Rows rows{{}, static_cast<int64_t>(format_of(dtype).bytes), tensor.sizes()[3]};
  for (const double number : tensor.numbers()) {
    const uint32_t bits = encode(dtype, number);
    if (dtype == Dtype::kFloat32) {
      append(rows, bits);
    } else {
      append(rows, static_cast<uint16_t>(bits));
    }
  }
  return rows;
}

RoundedRows round_rows(Draw& draw, Tensor& tensor) {
  const int64_t width = tensor.sizes()[3];
  RoundedRows rounded{{{}, 1, width}, {{}, sizeof(float), 1}};
  std::vector<double> numbers = tensor.numbers();
  const double steps = draw.one_of({127.0, 127.0, 128.0});
  for (auto row = numbers.begin(); row != numbers.end(); row += width) {
    double largest = 0.0;
    for (auto at = row; at != row + width && std::isfinite(largest); ++at) {
      largest = std::isfinite(*at) ? std::max(largest, std::fabs(*at)) : *at;
    }
    const bool usual = std::isfinite(largest) && largest > 0.0;
    const float scale = usual ? short_scale(largest / steps) : static_cast<float>(largest);
    const float stored = scale * draw.one_of({0.25F, 1.0F, 1.0F, 2.0F});
    append(rounded.scales, stored);
    for (auto at = row; at != row + width; ++at) {
      const double code =
          usual ? std::clamp(std::nearbyint(*at / double{scale}), -128.0, 127.0) : 1.0;
      append(rounded.numbers, static_cast<int8_t>(code));
      *at = code * double{stored};
    }
  }
  tensor = Tensor::packed(Dtype::kFloat32, tensor.sizes(), Side::kEnd);
  if (!numbers.empty()) {
    std::transform(numbers.begin(), numbers.end(), tensor.data<float>(),
                   [](double number) { return static_cast<float>(number); });
  }
  return rounded;
}

StoredKeys::StoredKeys(const StoredRows& rows, const Problem& problem, int64_t page_tokens,
                       uint64_t seed, Side side)
    : batches_(problem.args.backward.call.batches),
      heads_(problem.args.backward.call.kv_heads),
      tokens_(problem.args.backward.call.kv_len),
      page_tokens_(page_tokens),
      is_scaled_(rows.key_scale.width > 0),
      side_(side) {
  Draw draw(seed);
  if (page_tokens_ > 0) deal_pages(draw);
  key_ = hold(draw, rows.key);
  value_ = hold(draw, rows.value);
  if (!is_scaled_) return;
  key_scale_ = hold(draw, rows.key_scale);
  value_scale_ = hold(draw, rows.value_scale);
}

void StoredKeys::deal_pages(Draw& draw) {
  const int64_t count = (tokens_ + page_tokens_ - 1) / page_tokens_;
  page_count_ = batches_ * count + draw.between(0, 2);
  std::vector<int32_t> order(static_cast<size_t>(page_count_));
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int32_t>(i);
    std::swap(order[i], order[static_cast<size_t>(draw.below(static_cast<int64_t>(i) + 1))]);
  }
  pages_batch_ = count + draw.between(0, 2);
  std::vector<int32_t> table;
  for (int64_t b = 0; b < batches_; ++b) {
    table.resize(static_cast<size_t>(b * pages_batch_), kNoPage);
    table.insert(table.end(), order.begin() + b * count, order.begin() + (b + 1) * count);
  }
  pages_ = GuardedMemory(table.size() * sizeof(int32_t), side_);
  std::copy(table.begin(), table.end(), pages_.as<int32_t>());
  pages_.seal();
}

// The memory ends behind the last number that is there, which may be in the middle of a page.
StoredKeys::Held StoredKeys::hold(Draw& draw, const Rows& rows) const {
  const bool paged = page_tokens_ > 0;
  const Sizes sizes = {paged ? page_count_ : batches_, heads_, paged ? page_tokens_ : tokens_,
                       rows.width};
  const Sizes packed = {heads_ * sizes[2] * rows.width, sizes[2] * rows.width, rows.width, 1};
  const Sizes strides = draw.chance(50) ? packed : Tensor::draw_strides(draw, sizes, false, false);
  const auto for_each_row = [&](auto take) {
    int64_t number = 0;
    for (int64_t b = 0; b < batches_; ++b) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t j = 0; j < tokens_; ++j) {
          const int64_t block =
              paged ? pages_.as<int32_t>()[b * pages_batch_ + j / page_tokens_] : b;
          const int64_t token = paged ? j % page_tokens_ : j;
          take(block * strides[0] + h * strides[1] + token * strides[2], number++);
        }
      }
    }
  };
  int64_t room = 0;
  for_each_row([&](int64_t at, int64_t) { room = std::max(room, at + rows.width); });
  Held held{GuardedMemory(static_cast<size_t>(room * rows.each), side_), {}};
  char* bytes = held.memory.as<char>();
  const auto row = static_cast<size_t>(rows.width * rows.each);
  std::memset(bytes, rows.each == 1 ? kUnread : kUnreadNaN, held.memory.bytes());
  for_each_row([&](int64_t at, int64_t number) {
    std::memcpy(bytes + at * rows.each, rows.bytes.data() + static_cast<size_t>(number) * row, row);
  });
  held.memory.seal();
  held.view = {bytes, strides[0], strides[1], strides[2]};
  return held;
}

void StoredKeys::lend_to(Problem& problem) const {
  AttendArgs& a = problem.args.backward.call;
  a.key = key_.view;
  a.value = value_.view;
  a.store = {};
  a.store.is_scaled = is_scaled_;
  a.store.key_scale = key_scale_.view;
  a.store.value_scale = value_scale_.view;
  if (page_tokens_ == 0) return;
  a.store.pages = pages_.as<int32_t>();
  a.store.pages_batch = pages_batch_;
  a.store.page_tokens = page_tokens_;
}

std::string StoredKeys::text() const {
  return std::string(is_scaled_ ? "8 bits, " : "") +
         (page_tokens_ > 0 ? "pages of " + std::to_string(page_tokens_) + ", " : "") +
         (side_ == Side::kEnd ? "keys end at a guard" : "keys start at a guard");
}

}  // namespace headwise::testing

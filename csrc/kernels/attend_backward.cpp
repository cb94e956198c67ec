// Gradients of query, key and value. A task owns blocks of keys: it keeps their gradients while it
// goes through all query tiles that see them, and adds up the gradients of the queries block by
// block, so that one pass over the pairs is enough.

#include "kernels/gradient_tile.h"

namespace {

using headwise::kBlockTiles;

constexpr int64_t kBlock = kBlockTiles * kKeyTile;
constexpr int64_t kSummedTiles = 16;

template <class Numbers>
struct Backward {
  using T = typename Numbers::Element;
  static constexpr bool kPairs = Numbers::per_word == 2;

  GradientTile<Numbers> gradient;
  int64_t batch, kv_head, first, count;  // the block of keys
  KeyWords words;
  Rows key_over;         // keys as words over rows
  float* key_room;       // for a block of keys as words along rows,
  float* key_over_room;  // and over rows,
  float* value_room;     // and for its values
  float* d_key;          // block x head_dim, in whole registers
  float* d_value;        // block x value_dim, likewise
  // To these they are added after some query tiles, which keeps rounding errors small.
  float* d_key_total;
  float* d_value_total;
  int64_t summed;     // query tiles since then
  float* d_query;     // head_dim x 48
  float* query_over;  // rows of the tile as words over rows
  float* d_output_over;
  float* narrow;    // weights, then d_scores, rounded to pairs of queries
  float* d_scores;  // words over keys x 48

  const BackwardArgs& args() const noexcept { return *gradient.backward; }
  const AttendArgs& call() const noexcept { return gradient.backward->call; }
  const Tile& tile() const noexcept { return gradient.tile; }

  static int64_t workspace(const BackwardArgs& b) noexcept {
    const AttendArgs& a = b.call;
    const int64_t wide = whole_registers(a.head_dim);
    const int64_t wide_value = whole_registers(a.value_dim);
    const int64_t along = GradientTile<Numbers>::words(a.head_dim);
    const int64_t along_value = GradientTile<Numbers>::words(a.value_dim);
    return GradientTile<Numbers>::workspace(a) +
           kBlock * (along + wide + along_value + 2 * wide + 2 * wide_value) +
           kLanes * (2 * wide + wide_value) + (kPairs ? 2 * kTileScores : 0);
  }

  Backward(const BackwardArgs& b, float* room) noexcept {
    const AttendArgs& a = b.call;
    const int64_t wide = whole_registers(a.head_dim);
    const int64_t wide_value = whole_registers(a.value_dim);
    key_room = gradient.lay_out(b, room);
    key_over_room = key_room + kBlock * GradientTile<Numbers>::words(a.head_dim);
    value_room = key_over_room + kBlock * wide;
    d_key = value_room + kBlock * GradientTile<Numbers>::words(a.value_dim);
    d_value = d_key + kBlock * wide;
    d_key_total = d_value + kBlock * wide_value;
    d_value_total = d_key_total + kBlock * wide;
    d_query = d_value_total + kBlock * wide_value;
    query_over = d_query + kLanes * wide;
    d_output_over = query_over + kLanes * wide;
    narrow = d_output_over + kLanes * wide_value;
    d_scores = kPairs ? narrow + kTileScores : gradient.d_scores;
  }

  void load_block(int64_t number) noexcept {
    const AttendArgs& a = call();
    first = number * kBlock;
    count = smaller(a.kv_len - first, kBlock);
    const T* key = a.key.template at<const T>(batch, kv_head, first);
    const T* value = a.value.template at<const T>(batch, kv_head, first);
    words.first = first;
    words.key = words_along<Numbers>(key, a.key.row, count, a.head_dim, key_room);
    // What is not finite is left out where a pair that is closed, whose weight is 0, would
    // multiply it; through an open pair it has made the weights NaN already.
    const bool finite = all_finite(key, a.key.row, count, a.head_dim);
    key_over = words.key;
    if (kPairs || !finite) {
      key_over = copy_over<Numbers>(key, a.key.row, count, a.head_dim, key_over_room);
      if (!finite) Numbers::clear_odd(key_over_room, words_of<Numbers>(count) * key_over.row);
    }
    if (all_finite(value, a.value.row, count, a.value_dim)) {
      words.value = words_along<Numbers>(value, a.value.row, count, a.value_dim, value_room);
    } else {
      words.value = copy_words<Numbers>(value, a.value.row, count, a.value_dim, value_room);
      Numbers::clear_odd(value_room, count * words.value.row);
    }
    clear(d_key, count * whole_registers(a.head_dim));
    clear(d_key_total, count * whole_registers(a.head_dim));
    clear(d_value, count * whole_registers(a.value_dim));
    clear(d_value_total, count * whole_registers(a.value_dim));
    summed = 0;
  }

  void add_to_totals() noexcept {
    move(d_key, d_key_total, count * whole_registers(call().head_dim));
    move(d_value, d_value_total, count * whole_registers(call().value_dim));
    summed = 0;
  }

  static void move(float* from, float* to, int64_t floats) noexcept {
    for (int64_t i = 0; i < floats; i += Vec::width) {
      Vec::store(to + i, Vec::add(Vec::load(to + i), Vec::load(from + i)));
      Vec::store(from + i, Vec::set(0.0F));
    }
  }

  void take_queries(int64_t head, int64_t number, int64_t slot) noexcept {
    gradient.turn_to(batch, head, number);
    bool loaded = false;
    const int64_t begin = first / kKeyTile;
    TileWalk live(tile(), begin, begin + (count + kKeyTile - 1) / kKeyTile);
    for (; !live.done(); live.step()) {
      const Keys k = live_keys<Numbers>(tile(), live.number(), live.bits());
      if (k.count() == 0) continue;
      if (!loaded) load_queries();
      loaded = true;
      take_keys(k);
    }
    if (!loaded) return;
    add_d_query(slot);
    if (++summed == kSummedTiles) add_to_totals();
  }

  void load_queries() noexcept {
    const AttendArgs& a = call();
    const int64_t head = tile().head;
    gradient.load();
    const T* query = a.query.template at<const T>(batch, head, tile().first);
    const int64_t rows = tile().rows;
    const Rows q = copy_over<Numbers>(query, a.query.row, rows, a.head_dim, query_over);
    if (!all_finite(query, a.query.row, rows, a.head_dim)) {
      Numbers::clear_odd(query_over, words_of<Numbers>(rows) * q.row);
    }
    const headwise::Tensor4<const void>& from = args().d_output;
    const Rows d = copy_over<Numbers>(from.template at<const T>(batch, head, tile().first),
                                      from.row, rows, a.value_dim, d_output_over);
    for (int64_t r = 0; r < rows; ++r) {
      if (!gradient.sees_something(r)) Numbers::clear_row(d_output_over, d.row, r);
    }
    clear(d_query, kLanes * a.head_dim);
  }

  void take_keys(const Keys& k) noexcept {
    const AttendArgs& a = call();
    gradient.take(k, words);
    add_keys(k, tile().scores, d_output_over, a.value_dim, d_value);
    if (a.softcap > 0.0F) {
      for (int64_t i = k.from * kLanes; i < k.to * kLanes; i += Vec::width) {
        float* at = gradient.d_scores + i;
        Vec::store(at, Vec::mul(Vec::load(at), Vec::load(gradient.slope + i)));
      }
    }
    add_keys(k, gradient.d_scores, query_over, a.head_dim, d_key);
    if constexpr (kPairs) pair_d_scores(k);
    const int64_t row = (k.first + k.from - first) / Numbers::per_word;
    float* to = d_query;
    multiply<Numbers>({key_over.data + row * key_over.row, 1, key_over.row}, a.head_dim,
                      {d_scores + k.from / Numbers::per_word * kLanes, kLanes}, tile().registers(),
                      words_of<Numbers>(k.count()),
                      [=](int64_t d, int64_t lane, Vec::Reg sum) noexcept {
                        float* at = to + d * kLanes + lane;
                        Vec::store(at, Vec::add(Vec::load(at), sum));
                      });
  }

  // Adds to each key its factors times the rows of the tile.
  void add_keys(const Keys& k, float* factors, const float* over, int64_t dim,
                float* sums) noexcept {
    const int64_t row = whole_registers(dim);
    Left left{factors + k.from * kLanes, kLanes, 1};
    if constexpr (kPairs) {
      left = {narrow, kLanes / 2, 1};
      for (int64_t j = 0; j < k.count(); ++j) {
        for (int64_t r = 0; r < tile().lanes(); r += Vec::width) {
          Numbers::store_narrow(narrow + j * kLanes / 2 + r / 2,
                                Vec::load(factors + (k.from + j) * kLanes + r));
        }
      }
    }
    float* to = sums + (k.first + k.from - first) * row;
    multiply<Numbers, false>(left, k.count(), {over, row}, row / Vec::width,
                             words_of<Numbers>(tile().rows),
                             [=](int64_t j, int64_t lane, Vec::Reg sum) noexcept {
                               float* at = to + j * row + lane;
                               Vec::store(at, Vec::add(Vec::load(at), sum));
                             });
  }

  void pair_d_scores(const Keys& k) noexcept {
    for (int64_t j = k.from; j < k.to; j += 2) {
      for (int64_t r = 0; r < tile().lanes(); r += Vec::width) {
        const float* at = gradient.d_scores + j * kLanes + r;
        const Vec::Reg next = j + 1 < k.to ? Vec::load(at + kLanes) : Vec::set(0.0F);
        Vec::store(d_scores + j / 2 * kLanes + r, Numbers::pair(Vec::load(at), next));
      }
    }
  }

  void add_d_query(int64_t slot) noexcept {
    const AttendArgs& a = call();
    const Vec::Reg scale = Vec::set(a.scale);
    float block[Vec::width * Vec::width];
    float* to = d_query_of(slot, tile().head) + tile().first * a.head_dim;
    for (int64_t r = 0; r < tile().rows; r += Vec::width) {
      const int64_t rows = smaller(tile().rows - r, Vec::width);
      for (int64_t d = 0; d < a.head_dim; d += Vec::width) {
        const int64_t dims = smaller(a.head_dim - d, Vec::width);
        Vec::transpose(d_query + d * kLanes + r, kLanes, block, Vec::width);
        for (int64_t i = 0; i < rows; ++i) {
          float* at = to + (r + i) * a.head_dim + d;
          const Vec::Reg row = Vec::load(block + i * Vec::width);
          Vec::store_partial(at, Vec::add(Vec::load_partial(at, dims), Vec::mul(row, scale)), dims);
        }
      }
    }
  }

  float* d_query_of(int64_t slot, int64_t head) const noexcept {
    const AttendArgs& a = call();
    return args().d_query + ((slot * a.batches + batch) * a.q_heads + head) * a.q_len * a.head_dim;
  }

  void store_block() noexcept {
    const AttendArgs& a = call();
    add_to_totals();
    store_rows(args().d_key, d_key_total, a.head_dim, a.scale);
    store_rows(args().d_value, d_value_total, a.value_dim, 1.0F);
  }

  void store_rows(const headwise::Tensor4<void>& tensor, const float* from, int64_t dim,
                  float factor) const noexcept {
    for (int64_t j = 0; j < count; ++j, from += whole_registers(dim)) {
      T* to = tensor.template at<T>(batch, kv_head, first + j);
      for (int64_t c = 0; c < dim; c += Vec::width) {
        Vec::store_partial(to + c, Vec::mul(Vec::load(from + c), Vec::set(factor)),
                           smaller(dim - c, Vec::width));
      }
    }
  }

  static void clear(float* numbers, int64_t floats) noexcept {
    for (int64_t i = 0; i < floats; ++i) numbers[i] = 0.0F;
  }
};

template <class Numbers>
int64_t backward_workspace(const BackwardArgs& b) noexcept {
  return Backward<Numbers>::workspace(b);
}

template <class Numbers>
void attend_backward(const BackwardArgs& b, int64_t task, float* workspace) noexcept {
  const AttendArgs& a = b.call;
  Backward<Numbers> backward(b, workspace);
  const int64_t slot = task % b.slots;
  backward.kv_head = task / b.slots % a.kv_heads;
  backward.batch = task / b.slots / a.kv_heads;
  const int64_t head = backward.kv_head * a.group();
  // Where a slot takes one block, only the query tiles that see the block are read from it.
  const bool alone = b.slots > 1;
  for (int64_t h = head; h < head + a.group(); ++h) {
    const int64_t block = b.first_block + slot;
    int64_t first = 0;
    int64_t last = a.query_tiles();
    if (alone) {
      first = a.layout.first_query_tile(backward.batch, h, block);
      last = a.layout.last_query_tile(backward.batch, h, block, a.query_tiles());
    }
    const int64_t rows = smaller(last * kQueryTile, a.q_len) - first * kQueryTile;
    float* sums = backward.d_query_of(slot, h) + first * kQueryTile * a.head_dim;
    backward.clear(sums, rows * a.head_dim);
  }
  for (int64_t block = b.first_block + slot; block < b.last_block; block += b.slots) {
    backward.load_block(block);
    for (int64_t h = head; h < head + a.group(); ++h) {
      const int64_t end = a.layout.last_query_tile(backward.batch, h, block, a.query_tiles());
      int64_t number = a.layout.first_query_tile(backward.batch, h, block);
      for (; number < end; ++number) backward.take_queries(h, number, slot);
    }
    backward.store_block();
  }
}

template <class Numbers>
int64_t delta_workspace(const BackwardArgs& b) noexcept {
  return 3 * kLanes * GradientTile<Numbers>::words(b.call.value_dim);
}

// The sum of output * d_output of each row, less the gradient of its log-sum-exp. It runs in the
// order of the products of values and d_output, so that the gradient of a score is exactly 0 where
// only one key is seen.
template <class Numbers>
void fill_delta(const BackwardArgs& b, int64_t task, float* workspace) noexcept {
  using T = typename Numbers::Element;
  const AttendArgs& a = b.call;
  const int64_t tiles = a.query_tiles();
  const Tile tile = make_tile(a, task / tiles / a.q_heads, task / tiles % a.q_heads, task % tiles);
  const int64_t words = words_of<Numbers>(a.value_dim);
  const int64_t room = kLanes * GradientTile<Numbers>::words(a.value_dim);
  const auto turned = [&](const T* from, int64_t stride, float* to) noexcept {
    turn(copy_lanes<Numbers>(tile, from, stride, a.value_dim, workspace), tile.rows, words, to,
         kLanes);
  };
  float* output = workspace + room;
  float* d_output = output + room;
  turned(a.output.template at<const T>(tile.batch, tile.head, tile.first), a.output.row, output);
  turned(b.d_output.template at<const T>(tile.batch, tile.head, tile.first), b.d_output.row,
         d_output);
  const int64_t row = a.row_number(tile.batch, tile.head, tile.first);
  const int64_t chain = chain_of<Numbers> == 0 ? words : chain_of<Numbers>;
  for (int64_t r = 0; r < tile.rows; r += Vec::width) {
    Vec::Reg total = Vec::set(0.0F);
    for (int64_t w = 0; w < words;) {
      Vec::Reg sum = Vec::set(0.0F);
      for (const int64_t end = smaller(w + chain, words); w < end; ++w) {
        const int64_t at = w * kLanes + r;
        sum = Numbers::multiply_add(Vec::load(d_output + at), Vec::load(output + at), sum);
      }
      total = Vec::add(total, sum);
    }
    Vec::store_partial(b.delta + row + r, total, smaller(tile.rows - r, Vec::width));
  }
  for (int64_t i = row; i < row + tile.rows; ++i) {
    const float d_lse = b.d_lse == nullptr ? 0.0F : b.d_lse[i];
    b.delta[i] = a.sees_something(i) ? b.delta[i] - d_lse : 0.0F;
  }
}

template <class Numbers>
void fill(headwise::Functions& functions) noexcept {
  functions.delta_workspace = delta_workspace<Numbers>;
  functions.fill_delta = fill_delta<Numbers>;
  functions.backward_workspace = backward_workspace<Numbers>;
  functions.attend_backward = attend_backward<Numbers>;
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_attend_backward(KernelTable& table) noexcept {
  fill<Widened<float>>(table.of[0]);
  fill<ForBFloat16>(table.of[1]);
  fill<Widened<Float16>>(table.of[2]);
}

}  // namespace headwise::HEADWISE_ISA

// The gradient of a bias: the gradients of the scores once more, tile by tile, each number summed
// by the one task that owns it.

#include "kernels/gradient_tile.h"

namespace {

using headwise::BiasBackwardArgs;

template <class Numbers>
struct BiasBackward {
  using T = typename Numbers::Element;

  const BiasBackwardArgs* bias;
  GradientTile<Numbers> gradient;
  float* key_room;
  float* value_room;
  double* spelled;  // 48 x kv_len, for a bias that is spelled out

  const AttendArgs& call() const noexcept { return bias->backward.call; }
  const Tile& tile() const noexcept { return gradient.tile; }

  static int64_t workspace(const BiasBackwardArgs& b) noexcept {
    const AttendArgs& a = b.backward.call;
    return GradientTile<Numbers>::workspace(a) +
           kKeyTile * (GradientTile<Numbers>::words(a.head_dim) +
                       GradientTile<Numbers>::words(a.value_dim)) +
           (b.d_table == nullptr ? 2 * kLanes * a.kv_len : 0);
  }

  BiasBackward(const BiasBackwardArgs& b, float* room) noexcept : bias(&b) {
    const AttendArgs& a = b.backward.call;
    spelled = reinterpret_cast<double*>(room);
    if (b.d_table == nullptr) room += 2 * kLanes * a.kv_len;
    key_room = gradient.lay_out(b.backward, room);
    value_room = key_room + kKeyTile * GradientTile<Numbers>::words(a.head_dim);
  }

  // Calls `take(keys)` with the gradients of each live key tile between two.
  template <class Take>
  void for_tiles(int64_t batch, int64_t head, int64_t number, int64_t begin, int64_t end,
                 Take take) noexcept {
    const AttendArgs& a = call();
    bool loaded = false;
    gradient.turn_to(batch, head, number);
    for (TileWalk live(tile(), begin, end); !live.done(); live.step()) {
      const Keys k = live_keys<Numbers>(tile(), live.number(), live.bits());
      if (k.count() == 0) continue;
      if (!loaded) gradient.load();
      loaded = true;
      const int64_t count = smaller(a.kv_len - k.first, kKeyTile);
      const T* key = a.key.template at<const T>(batch, tile().kv_head, k.first);
      const T* value = a.value.template at<const T>(batch, tile().kv_head, k.first);
      KeyWords words{k.first, words_along<Numbers>(key, a.key.row, count, a.head_dim, key_room),
                     words_along<Numbers>(value, a.value.row, count, a.value_dim, value_room)};
      if (!all_finite(value, a.value.row, count, a.value_dim)) {
        words.value = copy_words<Numbers>(value, a.value.row, count, a.value_dim, value_room);
        Numbers::clear_odd(value_room, count * words.value.row);
      }
      gradient.take(k, words);
      take(k);
    }
  }

  // Calls `take(batch, head)` for every sample and head that share a number of the bias.
  template <class Take>
  void for_sharers(int64_t batch, int64_t head, Take take) const noexcept {
    const AttendArgs& a = call();
    const bool one_batch = bias->batches > 1;
    const bool one_head = bias->heads > 1;
    for (int64_t b = one_batch ? batch : 0; b < (one_batch ? batch + 1 : a.batches); ++b) {
      for (int64_t h = one_head ? head : 0; h < (one_head ? head + 1 : a.q_heads); ++h) take(b, h);
    }
  }

  // One query tile's rows of the bias, all columns. All sums run in double: they may be long.
  void rows(int64_t batch, int64_t head, int64_t number) noexcept {
    const AttendArgs& a = call();
    const int64_t first = number * kQueryTile;
    const int64_t count = smaller(a.q_len - first, kQueryTile);
    for (int64_t i = 0; i < count * a.kv_len; ++i) spelled[i] = 0.0;
    for_sharers(batch, head, [&](int64_t b, int64_t h) noexcept {
      for_tiles(b, h, number, 0, a.key_tiles(), [&](const Keys& k) noexcept {
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t j = k.from; j < k.to; ++j) {
            spelled[i * a.kv_len + k.first + j] += double{gradient.d_scores[j * kLanes + i]};
          }
        }
      });
    });
    float* to = bias->d_bias + ((batch * bias->heads + head) * a.q_len + first) * a.kv_len;
    for (int64_t i = 0; i < count * a.kv_len; ++i) to[i] = static_cast<float>(spelled[i]);
  }

  // One query tile's rows of a bias that is the same for all keys.
  void row_sums(int64_t batch, int64_t head, int64_t number) noexcept {
    const AttendArgs& a = call();
    const int64_t first = number * kQueryTile;
    const int64_t count = smaller(a.q_len - first, kQueryTile);
    double sums[kLanes] = {};
    for_sharers(batch, head, [&](int64_t b, int64_t h) noexcept {
      for_tiles(b, h, number, 0, a.key_tiles(), [&](const Keys& k) noexcept {
        for (int64_t j = k.from; j < k.to; ++j) {
          for (int64_t i = 0; i < count; ++i) {
            sums[i] += double{gradient.d_scores[j * kLanes + i]};
          }
        }
      });
    });
    float* to = bias->d_bias + (batch * bias->heads + head) * a.q_len + first;
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(sums[i]);
  }

  // One key tile's columns of a bias that is the same for all queries.
  void column_sums(int64_t batch, int64_t head, int64_t key_tile) noexcept {
    const AttendArgs& a = call();
    double sums[kKeyTile] = {};
    for_sharers(batch, head, [&](int64_t b, int64_t h) noexcept {
      const int64_t block = key_tile / headwise::kBlockTiles;
      const int64_t last = a.layout.last_query_tile(b, h, block, a.query_tiles());
      for (int64_t number = a.layout.first_query_tile(b, h, block); number < last; ++number) {
        for_tiles(b, h, number, key_tile, key_tile + 1, [&](const Keys& k) noexcept {
          for (int64_t j = k.from; j < k.to; ++j) {
            for (int64_t i = 0; i < tile().rows; ++i) {
              sums[j] += double{gradient.d_scores[j * kLanes + i]};
            }
          }
        });
      }
    });
    const int64_t first = key_tile * kKeyTile;
    float* to = bias->d_bias + (batch * bias->heads + head) * a.kv_len + first;
    const int64_t count = smaller(a.kv_len - first, kKeyTile);
    for (int64_t j = 0; j < count; ++j) to[j] = static_cast<float>(sums[j]);
  }

  // One head's table by distance, over one part of the query tiles.
  void table(int64_t part, int64_t head) noexcept {
    const AttendArgs& a = call();
    const int64_t width = a.bias.table_width;
    double* to = bias->d_table + (part * a.q_heads + head) * width;
    for (int64_t c = 0; c < width; ++c) to[c] = 0.0;
    const int64_t share = (a.query_tiles() + bias->parts - 1) / bias->parts;
    const int64_t end = smaller((part + 1) * share, a.query_tiles());
    for (int64_t b = 0; b < a.batches; ++b) {
      for (int64_t number = part * share; number < end; ++number) {
        for_tiles(b, head, number, 0, a.key_tiles(), [&](const Keys& k) noexcept {
          for (int64_t j = k.from; j < k.to; ++j) {
            double* numbers = to + a.bias.distance(b, tile().first, k.first + j);
            for (int64_t i = 0; i < tile().rows; ++i) {
              numbers[i] += double{gradient.d_scores[j * kLanes + i]};
            }
          }
        });
      }
    }
  }
};

template <class Numbers>
int64_t bias_workspace(const BiasBackwardArgs& b) noexcept {
  return BiasBackward<Numbers>::workspace(b);
}

int64_t bias_tasks(const BiasBackwardArgs& b) noexcept {
  const AttendArgs& a = b.backward.call;
  if (b.d_table != nullptr) return b.parts * a.q_heads;
  return b.batches * b.heads * (b.sums_rows ? a.key_tiles() : a.query_tiles());
}

template <class Numbers>
void bias_backward(const BiasBackwardArgs& b, int64_t task, float* workspace) noexcept {
  const AttendArgs& a = b.backward.call;
  BiasBackward<Numbers> bias(b, workspace);
  if (b.d_table != nullptr) {
    bias.table(task / a.q_heads, task % a.q_heads);
    return;
  }
  const int64_t tiles = b.sums_rows ? a.key_tiles() : a.query_tiles();
  const int64_t batch = task / tiles / b.heads;
  const int64_t head = task / tiles % b.heads;
  if (b.sums_rows) {
    bias.column_sums(batch, head, task % tiles);
  } else if (b.sums_columns) {
    bias.row_sums(batch, head, task % tiles);
  } else {
    bias.rows(batch, head, task % tiles);
  }
}

template <class Numbers>
void fill(headwise::Functions& functions) noexcept {
  functions.bias_workspace = bias_workspace<Numbers>;
  functions.bias_tasks = bias_tasks;
  functions.bias_backward = bias_backward<Numbers>;
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_bias_backward(KernelTable& table) noexcept {
  fill<Widened<float>>(table.of[0]);
  fill<ForBFloat16>(table.of[1]);
  fill<Widened<Float16>>(table.of[2]);
}

}  // namespace headwise::HEADWISE_ISA

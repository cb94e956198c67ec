// Query tiles against their live key tiles, with an online softmax (Milakov & Gimelshein, 2018;
// tiles as in FlashAttention, Dao et al., 2022).

#include "kernels/forward_tile.h"

namespace {

// What the query tiles of a run share.
template <class Numbers>
struct Run {
  float* keys;    // room for a key tile as words
  float* values;  // room for its values, and for the queries before
  float* scores;
  float* bias;
  float* weights;
  float* tiles;

  static int64_t columns(int64_t dim) noexcept {
    return kKeyTile * whole_registers(words_of<Numbers>(dim));
  }
  static int64_t value_room(const AttendArgs& a) noexcept {
    return kKeyTile * whole_registers(a.value_dim > a.head_dim ? a.value_dim : a.head_dim);
  }

  static int64_t workspace(const AttendArgs& a) noexcept {
    const int64_t scores = 1 + (Numbers::per_word == 2 ? 1 : 0) + (a.bias.any() ? 1 : 0);
    return columns(a.head_dim) + value_room(a) + scores * kTileScores +
           a.run_tiles * Forward<Numbers>::workspace(a);
  }

  Run(const AttendArgs& a, float* room) noexcept {
    keys = room;
    values = keys + columns(a.head_dim);
    scores = values + value_room(a);
    bias = scores + kTileScores;
    weights = bias + (a.bias.any() ? kTileScores : 0);
    tiles = weights + (Numbers::per_word == 2 ? kTileScores : 0);
  }

  KeyTile<Numbers> load(const Tile& tile, int64_t number) const noexcept {
    using T = typename Numbers::Element;
    const AttendArgs& a = *tile.args;
    const int64_t first = number * kKeyTile;
    const int64_t count = smaller(a.kv_len - first, kKeyTile);
    const T* key = a.key.template at<const T>(tile.batch, tile.kv_head, first);
    const T* value = a.value.template at<const T>(tile.batch, tile.kv_head, first);
    const bool closing = a.layout.which != nullptr || a.bias.any();
    KeyTile<Numbers> found;
    found.number = number;
    found.finite = !closing || all_finite(value, a.value.row, count, a.value_dim);
    found.keys = words_along<Numbers>(key, a.key.row, count, a.head_dim, keys);
    found.values = {reinterpret_cast<const Word*>(value), a.value.row};
    if (!Numbers::reads_rows_in_place() || !found.finite) {
      found.values = copy_over<Numbers>(value, a.value.row, count, a.value_dim, values);
    }
    if (!found.finite) Numbers::clear_odd(values, words_of<Numbers>(count) * found.values.row);
    return found;
  }
};

template <class Numbers>
int64_t tile_workspace(const AttendArgs& a) noexcept {
  return Run<Numbers>::workspace(a);
}

// Each key tile is read, and made to words, once for all query tiles of the run that see it.
template <class Numbers>
void attend_tile(const AttendArgs& a, int64_t task, float* workspace) noexcept {
  // The last query tiles come first, for with a causal pattern they have most to do.
  const int64_t first = (a.query_runs() - 1 - task % a.query_runs()) * a.run_tiles;
  const int64_t count = smaller(a.query_tiles() - first, a.run_tiles);
  const int64_t row = task / a.query_runs();
  const Run<Numbers> run(a, workspace);
  Forward<Numbers> tiles[headwise::kRunTiles];
  TileWalk live[headwise::kRunTiles];
  for (int64_t t = 0; t < count; ++t) {
    Forward<Numbers>& forward = tiles[t];
    forward.tile = make_tile(a, row / a.q_heads, row % a.q_heads, first + t);
    forward.lay_out(run.tiles + t * Forward<Numbers>::workspace(a));
    forward.tile.scores = run.scores;
    forward.tile.bias = run.bias;
    forward.weights = Numbers::per_word == 2 ? run.weights : run.scores;
    forward.load_queries(run.values);
    live[t] = TileWalk(forward.tile, 0, a.key_tiles());
  }
  for (;;) {
    int64_t number = a.key_tiles();
    for (int64_t t = 0; t < count; ++t) number = smaller(number, live[t].number());
    if (number == a.key_tiles()) break;
    const KeyTile<Numbers> key_tile = run.load(tiles[0].tile, number);
    for (int64_t t = 0; t < count; ++t) {
      if (live[t].number() != number) continue;
      tiles[t].take_keys(key_tile, live[t].bits());
      live[t].step();
    }
  }
  for (int64_t t = 0; t < count; ++t) {
    tiles[t].finish_rows();
    tiles[t].store_output();
  }
}

template <class Numbers>
void fill(headwise::Functions& functions) noexcept {
  functions.tile_workspace = tile_workspace<Numbers>;
  functions.attend_tile = attend_tile<Numbers>;
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_attend_tile(KernelTable& table) noexcept {
  fill<Widened<float>>(table.of[0]);
  fill<ForBFloat16>(table.of[1]);
  fill<Widened<Float16>>(table.of[2]);
}

}  // namespace headwise::HEADWISE_ISA

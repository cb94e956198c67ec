// Linear attention's sums over keys. Tokens are taken in chunks: within a chunk readers meet
// writers one by one, and what was written before is a state, the sum of key times value.

#include "kernels/linear_chunk.h"

namespace {

using headwise::kSegment;
using headwise::LinearState;

// Sums of all writers before some token, divided by exp(log_scale).
struct State {
  float* sums;        // features x whole registers of values
  float* normaliser;  // whole registers of features
  float* log_scale;

  State(const LinearSumsArgs& a, float* room) noexcept
      : sums(room),
        normaliser(sums + a.features * whole_registers(a.value_dim)),
        log_scale(normaliser + whole_registers(a.features)) {}
  static int64_t size(const LinearSumsArgs& a) noexcept {
    return a.features * whole_registers(a.value_dim) + whole_registers(a.features) + Vec::width;
  }
  int64_t numbers() const noexcept { return log_scale - sums; }

  void clear(const LinearSumsArgs& a) const noexcept {
    for (int64_t i = 0; i < numbers(); i += Vec::width) Vec::store(sums + i, Vec::set(0.0F));
    *log_scale = a.gain == nullptr ? 0.0F : kMinusInfinity;
  }

  // Takes what the caller gave for this head.
  void load(const LinearSumsArgs& a, const LinearState& given, int64_t head) const noexcept {
    clear(a);
    if (given.sums == nullptr) return;
    const float* from = given.sums + head * a.features * a.value_dim;
    for (int64_t f = 0; f < a.features; ++f) {
      move_row(from + f * a.value_dim, sums + f * whole_registers(a.value_dim), a.value_dim);
    }
    move_row(given.normaliser + head * a.features, normaliser, a.features);
    *log_scale = given.log_scale[head];
  }

  void save(const LinearSumsArgs& a, int64_t head) const noexcept {
    float* to = a.after.sums + head * a.features * a.value_dim;
    for (int64_t f = 0; f < a.features; ++f) {
      move_row(sums + f * whole_registers(a.value_dim), to + f * a.value_dim, a.value_dim);
    }
    move_row(normaliser, a.after.normaliser + head * a.features, a.features);
    a.after.log_scale[head] = *log_scale;
  }

  static void move_row(const float* from, float* to, int64_t count) noexcept {
    for (int64_t i = 0; i < count; i += Vec::width) {
      const int64_t left = smaller(count - i, Vec::width);
      Vec::store_partial(to + i, Vec::load_partial(from + i, left), left);
    }
  }

  // Becomes the sum of two states, the first of which is `shift` away in log scale.
  void join(const State& first, float shift, const State& second) const noexcept {
    const float one = *first.log_scale;
    const float other = *second.log_scale;
    const float scale = one + shift > other ? one + shift : other;
    const Vec::Reg of_one = Vec::set(share_of(one, scale, shift));
    const Vec::Reg of_other = Vec::set(share_of(other, scale, 0.0F));
    for (int64_t i = 0; i < numbers(); i += Vec::width) {
      const Vec::Reg part = Vec::mul(Vec::load(second.sums + i), of_other);
      Vec::store(sums + i, Vec::fma(Vec::load(first.sums + i), of_one, part));
    }
    *log_scale = scale;
  }
};

// One key/value head: its tokens, and the room to work in.
struct Head {
  const LinearSumsArgs& a;
  int64_t batch, kv_head;
  State before;  // writers of earlier segments
  State own;     // writers of this segment
  State all;     // both
  Chunk chunk;

  Head(const LinearSumsArgs& args, int64_t number, float* room) noexcept
      : a(args),
        batch(number / args.kv_heads),
        kv_head(number % args.kv_heads),
        before(args, room),
        own(args, room + State::size(args)),
        all(args, room + 2 * State::size(args)),
        chunk(args, room + 3 * State::size(args)) {}
  static int64_t workspace(const LinearSumsArgs& a) noexcept {
    return 3 * State::size(a) + Chunk::workspace(a);
  }
  float decay() const noexcept { return a.log_decay == nullptr ? 0.0F : a.log_decay[kv_head]; }

  // Tokens of a segment in the order in which they are taken, from `begin` on.
  Span segment(int64_t number, int64_t length) const noexcept {
    const int64_t begin = number * kSegment;
    return {begin, smaller(begin + kSegment, length)};
  }

  // Sums the writers of a segment; lets the readers of each chunk look before and at it.
  void go_through(Span tokens, bool writes_only) noexcept {
    own.clear(a);
    const int64_t chunks = (tokens.count() + kChunk - 1) / kChunk;
    int64_t gone = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t at = tokens.begin + (a.backwards ? chunks - 1 - c : c) * kChunk;
      const Span part{at, smaller(at + kChunk, tokens.end)};
      chunk.turn_to(batch, kv_head, part, decay());
      if (a.causal && !writes_only) {
        all.join(before, static_cast<float>(gone) * decay(), own);
        read();
      }
      write(part);
      gone += part.count();
    }
  }

  void read() noexcept {
    for (int64_t r = 0; r < a.readers; ++r) {
      chunk.take_queries(r);
      chunk.read_state(all.sums, all.normaliser, *all.log_scale, r);
      for (int64_t w = 0; a.causal && w < a.writers; ++w) {
        chunk.take_keys(w);
        chunk.read_chunk(r);
      }
      chunk.finish(r);
    }
  }

  void write(Span part) noexcept {
    const float faded = static_cast<float>(part.count()) * decay();
    float scale = *own.log_scale + faded;
    for (int64_t w = 0; w < a.writers; ++w) {
      const float highest = chunk.highest(w);
      if (highest > scale) scale = highest;
    }
    const float left = share_of(*own.log_scale, scale, faded);
    for (int64_t w = 0; w < a.writers; ++w) {
      chunk.take_keys(w);
      chunk.write(w, scale, w == 0 ? left : 1.0F, own.sums, own.normaliser);
    }
    *own.log_scale = scale;
  }

  // Segments stand in the order in which they are taken.
  int64_t in_order(int64_t step) const noexcept {
    return a.backwards ? a.segment_count() - 1 - step : step;
  }
  float decay_over(Span tokens) const noexcept {
    return static_cast<float>(tokens.count()) * decay();
  }
  void read_all(Span queries) noexcept {
    for (int64_t at = queries.begin; at < queries.end; at += kChunk) {
      const Span part{at, smaller(at + kChunk, queries.end)};
      chunk.turn_to(batch, kv_head, part, 0.0F);
      read();
    }
  }
};

State stored(const LinearSumsArgs& a, int64_t head, int64_t segment) noexcept {
  return {a, a.segments + (head * a.segment_count() + segment) * State::size(a)};
}

void linear_head(const LinearSumsArgs& a, int64_t task, float* workspace) noexcept {
  Head head(a, task, workspace);
  head.before.load(a, a.before, task);
  for (int64_t s = 0; s < a.segment_count(); ++s) {
    const Span tokens = head.segment(head.in_order(s), a.kv_len);
    head.go_through(tokens, false);
    head.before.join(head.before, head.decay_over(tokens), head.own);
  }
  head.before.save(a, task);
  if (a.causal) return;
  head.own.clear(a);
  head.all.join(head.before, 0.0F, head.own);
  head.read_all({0, a.q_len});
}

void linear_write(const LinearSumsArgs& a, int64_t task, float* workspace) noexcept {
  const int64_t number = task / a.segment_count();
  const int64_t segment = task % a.segment_count();
  Head head(a, number, workspace);
  head.go_through(head.segment(segment, a.kv_len), true);
  const State to = stored(a, number, segment);
  State::move_row(head.own.sums, to.sums, head.own.numbers() + 1);
}

// Leaves in every segment's place what was written before it.
void linear_join(const LinearSumsArgs& a, int64_t task, float* workspace) noexcept {
  Head head(a, task, workspace);
  head.before.load(a, a.before, task);
  for (int64_t s = 0; s < a.segment_count(); ++s) {
    const State place = stored(a, task, head.in_order(s));
    State::move_row(place.sums, head.own.sums, place.numbers() + 1);
    State::move_row(head.before.sums, place.sums, place.numbers() + 1);
    const Span tokens = head.segment(head.in_order(s), a.kv_len);
    head.before.join(head.before, head.decay_over(tokens), head.own);
  }
  head.before.save(a, task);
}

void linear_read(const LinearSumsArgs& a, int64_t task, float* workspace) noexcept {
  const int64_t count = a.causal ? a.segment_count() : a.query_segments();
  const int64_t number = task / count;
  const int64_t segment = task % count;
  Head head(a, number, workspace);
  if (a.causal) {
    const State place = stored(a, number, segment);
    State::move_row(place.sums, head.before.sums, place.numbers() + 1);
    head.go_through(head.segment(segment, a.kv_len), false);
    return;
  }
  head.before.load(a, a.after, number);
  head.own.clear(a);
  head.all.join(head.before, 0.0F, head.own);
  head.read_all(head.segment(segment, a.q_len));
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_linear_sums(KernelTable& table) noexcept {
  for (Functions& of : table.of) {
    of.linear_state_size = State::size;
    of.linear_workspace = Head::workspace;
    of.linear_head = linear_head;
    of.linear_write = linear_write;
    of.linear_join = linear_join;
    of.linear_read = linear_read;
  }
}

}  // namespace headwise::HEADWISE_ISA

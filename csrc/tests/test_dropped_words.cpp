// The generator against its published known answers, and the weights that kernels drop by it.

#include <cmath>

#include "attend.h"
#include "dispatch.h"
#include "philox.h"
#include "report.h"
#include "subjects.h"
#include "tensor.h"

namespace headwise::testing {

namespace {

// From the file kat_vectors of Random123.
void check_known_answers(Subject& subject) {
  struct Known {
    std::array<uint32_t, 4> counter;
    std::array<uint32_t, 2> key;
    std::array<uint32_t, 4> words;
  };
  const uint32_t ones = 0xFFFFFFFFU;
  const Known answers[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}},
      {{ones, ones, ones, ones},
       {ones, ones},
       {0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}},
      {{0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U},
       {0xA4093822U, 0x299F31D0U},
       {0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}}};
  for (const Known& known : answers) {
    subject.check(philox_words(known.counter, known.key) == known.words, "a known answer differs");
  }
}

// All scores are alike and value `j` is the unit vector `j`, so that the output is the mask.
void check_mask(Subject& subject, Dtype dtype, int64_t q_len, uint64_t seed) {
  const int64_t keys = 200;
  const int64_t batches = 2;
  const int64_t heads = 3;
  Tensor query = Tensor::packed(dtype, {batches, heads, q_len, 1}, Side::kEnd);
  Tensor key = Tensor::packed(dtype, {batches, heads, keys, 1}, Side::kEnd);
  Tensor value(dtype, {batches, heads, keys, keys}, {0, 0, keys, 1}, Side::kEnd);
  Tensor output = Tensor::packed(dtype, {batches, heads, q_len, keys}, Side::kEnd);
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < q_len; ++i) query.set(b, h, i, 0, 0.0);
      for (int64_t j = 0; j < keys; ++j) key.set(b, h, j, 0, 0.0);
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t c = 0; c < keys; ++c) value.set(0, 0, j, c, j == c ? 1.0 : 0.0);
  }
  AttendArgs a;
  a.dtype = dtype;
  a.query = query.view<const void>();
  a.key = key.view<const void>();
  a.value = value.view<const void>();
  a.output = output.view<void>();
  a.batches = batches;
  a.q_heads = a.kv_heads = heads;
  a.q_len = q_len;
  a.kv_len = a.value_dim = keys;
  a.head_dim = 1;
  a.dropout = {
      0x60000000U, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)}, 1.6F};
  attend(a, 2);
  bool alike = true;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < q_len; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
          const auto words = philox_words({static_cast<uint32_t>(i), static_cast<uint32_t>(j / 4),
                                           static_cast<uint32_t>(h), static_cast<uint32_t>(b)},
                                          {a.dropout.key[0], a.dropout.key[1]});
          const bool kept = words[static_cast<size_t>(j % 4)] >= a.dropout.threshold;
          alike = alike && kept == (output.get(b, h, i, j) > 0.0);
        }
      }
    }
  }
  subject.check(alike, "other weights are dropped than the generator says");
}

}  // namespace

bool test_dropped_words(const Plan& plan) {
  Subject subject("dropout");
  announce("known answers of Philox4x32-10");
  check_known_answers(subject);
  for (const std::string& set : plan.sets) {
    use_set(set);
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16}) {
      for (const int64_t q_len : {1, 7, 16, 17, 50, 97}) {
        announce(set + ", dropped weights of " + std::to_string(q_len) + " queries");
        check_mask(subject, dtype, q_len, 0x0123456789ABCDEFU * static_cast<uint64_t>(q_len));
      }
    }
  }
  return subject.finish();
}

}  // namespace headwise::testing

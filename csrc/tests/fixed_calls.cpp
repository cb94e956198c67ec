// Calls whose instructions are counted; see `make count`.

#include <stdexcept>

#include "attend.h"
#include "subjects.h"
#include "tensor.h"

namespace headwise::testing {

namespace {

struct FixedCall {
  int64_t q_heads, kv_heads, q_len, kv_len;
  bool backward;
};

FixedCall fixed_call(const std::string& name) {
  if (name == "forward") return {2, 2, 200, 200, false};
  if (name == "decode") return {8, 2, 1, 2000, false};
  if (name == "backward") return {2, 1, 150, 150, true};
  throw std::invalid_argument("there is no call '" + name +
                              "' to count; there are forward, decode, backward");
}

}  // namespace

void run_fixed_call(const std::string& name) {
  const FixedCall call = fixed_call(name);
  constexpr int64_t kDim = 64;
  Draw draw(1);
  const auto tensor = [&](int64_t heads, int64_t length) {
    Tensor made = Tensor::packed(Dtype::kFloat32, {1, heads, length, kDim}, Side::kEnd);
    made.fill(draw, 1.0);
    return made;
  };
  const Tensor query = tensor(call.q_heads, call.q_len);
  const Tensor key = tensor(call.kv_heads, call.kv_len);
  const Tensor value = tensor(call.kv_heads, call.kv_len);
  const Tensor output = tensor(call.q_heads, call.q_len);
  const Tensor lse =  // in two parts
      Tensor::packed(Dtype::kFloat32, {1, 1, call.q_heads, 2 * call.q_len}, Side::kEnd);
  BackwardArgs args;
  AttendArgs& a = args.call;
  a.query = query.view<const void>();
  a.key = key.view<const void>();
  a.value = value.view<const void>();
  a.output = output.view<void>();
  a.lse = lse.data<float>();
  a.batches = 1;
  a.q_heads = call.q_heads;
  a.kv_heads = call.kv_heads;
  a.q_len = call.q_len;
  a.kv_len = call.kv_len;
  a.head_dim = a.value_dim = kDim;
  a.scale = 0.125F;
  attend(a, 1);
  if (!call.backward) return;
  const Tensor d_output = tensor(call.q_heads, call.q_len);
  const Tensor d_query = tensor(call.q_heads, call.q_len);
  const Tensor d_key = tensor(call.kv_heads, call.kv_len);
  const Tensor d_value = tensor(call.kv_heads, call.kv_len);
  args.d_output = d_output.view<const void>();
  args.d_key = d_key.view<void>();
  args.d_value = d_value.view<void>();
  attend_backward(args, d_query.data<float>(), nullptr, 1);
}

}  // namespace headwise::testing

// Proves that a guard page notices one element too many: in a child that has to die of it.

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "attend.h"
#include "outputs.h"
#include "subjects.h"

namespace headwise::testing {

namespace {

template <class Action>
bool dies(Action action) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    action();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

void touch(const Tensor& tensor, int64_t at) {
  [[maybe_unused]] const volatile float read = tensor.data<volatile float>()[at];
}

// A call whose tensors are one row shorter than it says.
void attend_beyond(int64_t q_len, bool too_many_keys) {
  const int64_t dim = 64;
  AttendArgs a;
  const auto tensor = [&](int64_t length) {
    Tensor made = Tensor::packed(Dtype::kFloat32, {1, 1, length, dim}, Side::kEnd);
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t c = 0; c < dim; ++c) made.set(0, 0, i, c, 1.0);
    }
    return made;
  };
  const Tensor query = tensor(q_len + (too_many_keys ? 1 : 0));
  const Tensor key = tensor(200);
  const Tensor value = tensor(200);
  const Tensor output = tensor(q_len);
  a.query = query.view<const void>();
  a.key = key.view<const void>();
  a.value = value.view<const void>();
  a.output = output.view<void>();
  a.batches = a.q_heads = a.kv_heads = 1;
  a.q_len = too_many_keys ? q_len : q_len + 1;
  a.kv_len = too_many_keys ? 201 : 200;
  a.head_dim = a.value_dim = dim;
  attend(a, 1);
}

}  // namespace

bool test_guards() {
  Subject subject("guards");
  announce("the guards' own test");
  for (const int64_t count : {1, 1024, 1500}) {
    const Sizes sizes = {1, 1, 1, count};
    const Tensor ends = Tensor::packed(Dtype::kFloat32, sizes, Side::kEnd);
    const Tensor starts = Tensor::packed(Dtype::kFloat32, sizes, Side::kStart);
    subject.check(!dies([&] { touch(ends, count - 1); }), "the last element was refused");
    subject.check(dies([&] { touch(ends, count); }), "one element past the end was read");
    subject.check(!dies([&] { touch(starts, 0); }), "the first element was refused");
    subject.check(dies([&] { touch(starts, -1); }), "one element before the start was read");
    subject.check(dies([&] { ends.data<float>()[count] = 0.0F; }), "one past the end was written");
  }
  Tensor sealed = Tensor::packed(Dtype::kFloat32, {1, 1, 1, 4}, Side::kEnd);
  sealed.seal();
  subject.check(dies([&] { sealed.data<float>()[3] = 0.0F; }), "a sealed tensor was written");
  for (const int64_t q_len : {4, 100}) {
    subject.check(dies([&] { attend_beyond(q_len, true); }), "attend read one key too many");
    subject.check(dies([&] { attend_beyond(q_len, false); }), "attend took one query too many");
  }
  return subject.finish();
}

}  // namespace headwise::testing

// Drawn calls of linear attention's sums against the reference: every set, both sides of a guard
// page, several threads, task by task.

#include <algorithm>

#include "dispatch.h"
#include "each_task.h"
#include "linear_reference.h"
#include "linear_sums.h"
#include "subjects.h"

namespace headwise::testing {

namespace {

struct Found {
  std::vector<double> output, total, sums, normaliser, log_scale;
};

// Guarded memory for everything that a call writes.
class Written {
 public:
  explicit Written(const LinearProblem& problem) : args_(problem.args) {
    LinearSumsArgs& a = args_;
    const auto floats = [&](int64_t heads, int64_t length, int64_t columns) {
      return Tensor::packed(Dtype::kFloat32, {a.batches, heads, length, columns}, problem.side);
    };
    const int64_t readers = a.kv_heads * a.readers;
    output_ = floats(readers, a.q_len, a.value_dim);
    total_ = floats(readers, problem.has_total ? a.q_len : 0, 1);
    sums_ = floats(a.kv_heads, a.features, a.value_dim);
    normaliser_ = floats(a.kv_heads, a.features, 1);
    log_scale_ = floats(a.kv_heads, 1, 1);
    a.output = output_.data<float>();
    if (problem.has_total) a.normaliser = total_.data<float>();
    a.after = {sums_.data<float>(), normaliser_.data<float>(), log_scale_.data<float>()};
  }

  const LinearSumsArgs& args() const { return args_; }
  Found found() const {
    return {output_.numbers(), total_.numbers(), sums_.numbers(), normaliser_.numbers(),
            log_scale_.numbers()};
  }

 private:
  LinearSumsArgs args_;
  Tensor output_, total_, sums_, normaliser_, log_scale_;
};

Found run(const LinearProblem& problem, int threads) {
  const Written written(problem);
  linear_sums(written.args(), threads);
  return written.found();
}

Found run_heads(const LinearProblem& problem) {
  const Written written(problem);
  const LinearSumsArgs& a = written.args();
  const Functions& kernel = kernels()[Dtype::kFloat32];
  run_each(a.batches * a.kv_heads, kernel.linear_workspace(a), problem.side,
           [&](int64_t task, float* room) { kernel.linear_head(a, task, room); });
  return written.found();
}

// Segments apart, in whichever order: here, the last one first.
Found run_segments(const LinearProblem& problem) {
  const Written written(problem);
  LinearSumsArgs a = written.args();
  const Functions& kernel = kernels()[Dtype::kFloat32];
  const int64_t heads = a.batches * a.kv_heads;
  const int64_t written_segments = heads * a.segment_count();
  const Tensor segments = room_for(written_segments * kernel.linear_state_size(a), problem.side);
  a.segments = segments.data<float>();
  const auto run_all = [&](int64_t tasks, auto function) {
    run_each(tasks, kernel.linear_workspace(a), problem.side,
             [&](int64_t task, float* room) { function(a, tasks - 1 - task, room); });
  };
  run_all(written_segments, kernel.linear_write);
  run_all(heads, kernel.linear_join);
  run_all(a.causal ? written_segments : heads * a.query_segments(), kernel.linear_read);
  return written.found();
}

bool all_same_bits(const Found& a, const Found& b) {
  return same_bits(a.output, b.output) && same_bits(a.total, b.total) &&
         same_bits(a.sums, b.sums) && same_bits(a.normaliser, b.normaliser) &&
         same_bits(a.log_scale, b.log_scale);
}

// Numbers of a head, as they would be if they had been divided by just what the reference divides.
void divide_alike(std::vector<double>& numbers, const LinearReference& reference,
                  const Found& found) {
  const size_t heads = found.log_scale.size();
  for (size_t at = 0; at < numbers.size(); ++at) {
    const size_t head = at / (numbers.size() / heads);
    const double more = found.log_scale[head] - reference.log_scale.number[head];
    if (std::isfinite(more)) numbers[at] *= std::exp(more);
  }
}

void compare(Subject& subject, const LinearProblem& problem, const LinearReference& reference,
             Found found) {
  const LinearSumsArgs& a = problem.args;
  const Bound bound{0.0, rounding(Dtype::kFloat32), 1e-30};
  measure(subject, "log_scale", reference.log_scale, found.log_scale, bound);
  divide_alike(found.sums, reference, found);
  divide_alike(found.normaliser, reference, found);
  if (!a.causal && a.offset == nullptr) {
    divide_alike(found.output, reference, found);
    divide_alike(found.total, reference, found);
  }
  measure(subject, "output", reference.output, found.output, bound);
  measure(subject, "total", reference.total, found.total, bound);
  measure(subject, "sums", reference.sums, found.sums, bound);
  measure(subject, "normaliser", reference.normaliser, found.normaliser, bound);
}

// Numbers of one head of so many; of its rows, those that are kept.
template <class Keeps>
std::vector<double> part(const std::vector<double>& numbers, int64_t heads, int64_t head,
                         int64_t rows, Keeps keeps) {
  std::vector<double> kept;
  if (numbers.empty()) return kept;
  const int64_t row = static_cast<int64_t>(numbers.size()) / (heads * rows);
  for (int64_t i = 0; i < rows; ++i) {
    const auto from = numbers.begin() + (head * rows + i) * row;
    if (keeps(i)) kept.insert(kept.end(), from, from + row);
  }
  return kept;
}

// The head that is kept in a spoiled problem has its bits, and tells of what it was given.
void check_spoiled(Subject& subject, const LinearProblem& spoiled, const Found& clean,
                   const Found& found) {
  const LinearSumsArgs& a = spoiled.args;
  const int64_t heads = a.batches * a.kv_heads;
  if (heads * a.q_len == 0) return;
  const int64_t head = spoiled.kept.batch * a.kv_heads + spoiled.kept.kv_head;
  bool alike = true;
  for (int64_t r = head * a.readers; r < (head + 1) * a.readers; ++r) {
    const auto rows = [&](const std::vector<double>& numbers) {
      return part(numbers, heads * a.readers, r, a.q_len,
                  [&](int64_t i) { return spoiled.keeps_row(i); });
    };
    alike = alike && same_bits(rows(clean.output), rows(found.output)) &&
            same_bits(rows(clean.total), rows(found.total));
  }
  const auto all = [&](const std::vector<double>& numbers) {
    return part(numbers, heads, head, 1, [](int64_t) { return true; });
  };
  const bool sees_all = !a.causal || spoiled.kept.token == (a.backwards ? 0 : a.kv_len - 1);
  if (sees_all) {
    alike = alike && same_bits(all(clean.sums), all(found.sums)) &&
            same_bits(all(clean.normaliser), all(found.normaliser)) &&
            same_bits(all(clean.log_scale), all(found.log_scale));
  }
  subject.check(alike, "what a row does not see has changed its bits");
  if (!spoiled.has_mark || a.features == 0) return;
  bool is_marked = false;
  for (const std::vector<double>& numbers : {all(found.sums), all(found.normaliser)}) {
    is_marked = is_marked || !std::all_of(numbers.begin(), numbers.end(),
                                          [](double each) { return std::isfinite(each); });
  }
  subject.check(is_marked, "a key or value that is not finite has left no mark in the state");
}

void check_call(Subject& subject, const Plan& plan, int64_t number) {
  const auto seed = static_cast<uint64_t>(number);
  const LinearProblem ends(seed, Side::kEnd);
  const LinearProblem starts(seed, Side::kStart);
  const LinearProblem spoiled(seed, Side::kEnd, true);
  const LinearReference reference = compute_linear_reference(ends);
  for (const std::string& set : plan.sets) {
    use_set(set);
    announce(set + ", " + ends.text());
    const Found found = run(ends, 1);
    compare(subject, ends, reference, found);
    const auto check = [&](const Found& other, const char* what) {
      subject.check(all_same_bits(found, other), what);
    };
    check(run(ends, 2), "two threads give other bits");
    announce(set + ", " + starts.text());
    check(run(starts, 5), "five threads give other bits");
    announce(set + ", head by head, " + ends.text());
    check(run_heads(ends), "a head depends on what its workspace held");
    announce(set + ", segment by segment, " + starts.text());
    check(run_segments(starts), "a segment depends on what its workspace held");
    announce(set + ", spoiled, " + spoiled.text());
    check_spoiled(subject, spoiled, found, run(spoiled, 1));
  }
}

}  // namespace

bool test_linear_sums(const Plan& plan) {
  Subject subject("linear attention");
  for (int64_t number = plan.first; number < plan.first + plan.cases; ++number) {
    check_call(subject, plan, number);
  }
  return subject.finish();
}

}  // namespace headwise::testing

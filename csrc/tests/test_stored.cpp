// Drawn calls over keys of 8 bits and keys in pages against the reference: every set, both sides of
// a guard page, several threads.

#include "answers.h"
#include "dispatch.h"
#include "stored_keys.h"
#include "subjects.h"

namespace headwise::testing {

namespace {

constexpr int kForms = 3;  // 8 bits in one piece, pages of the query's dtype, pages of 8 bits

// Makes the problem's keys and values what the rows stand for.
StoredRows draw_rows(Draw& draw, Problem& problem, bool is_scaled) {
  if (!is_scaled) {
    const Dtype dtype = problem.args.backward.call.dtype;
    return {plain_rows(problem.key, dtype), plain_rows(problem.value, dtype), {}, {}};
  }
  RoundedRows key = round_rows(draw, problem.key);
  RoundedRows value = round_rows(draw, problem.value);
  return {std::move(key.numbers), std::move(value.numbers), std::move(key.scales),
          std::move(value.scales)};
}

void check_call(Subject& subject, const Plan& plan, int64_t number) {
  const auto seed = static_cast<uint64_t>(number);
  const int64_t form = number / kDtypes % kForms;
  Draw draw(~seed);
  Problem problem(seed, static_cast<Dtype>(number % kDtypes),
                  number % 2 == 0 ? Side::kEnd : Side::kStart, Queries::kFew);
  const StoredRows rows = draw_rows(draw, problem, form != 1);
  const int64_t page_tokens = form == 0 ? 0 : kKeyTile * draw.one_of<int64_t>({1, 1, 2, 3});
  const StoredKeys ends(rows, problem, page_tokens, seed, Side::kEnd);
  const StoredKeys starts(rows, problem, page_tokens, seed, Side::kStart);
  const StoredKeys whole(rows, problem, 0, seed + 1, Side::kEnd);
  const Reference reference = compute_reference(problem, Part::kForward);
  for (const std::string& set : plan.sets) {
    use_set(set);
    const auto take = [&](const StoredKeys& keys, const char* how) {
      keys.lend_to(problem);
      announce(set + how + ", " + keys.text() + ", " + problem.text());
    };
    take(ends, "");
    const Answers answers = run_forward(problem, 1);
    compare_forward(problem, reference, answers, subject);
    subject.check(same_bits(answers, run_forward(problem, 2)), "two threads give other bits");
    take(starts, "");
    subject.check(same_bits(answers, run_forward(problem, 5)), "five threads give other bits");
    take(ends, ", task by task");
    subject.check(same_bits(answers, run_forward_tasks(problem)),
                  "a task depends on what its workspace held");
    take(whole, ", the same in one piece");
    subject.check(same_bits(answers, run_forward(problem, 1)), "other places give other bits");
  }
}

}  // namespace

bool test_stored(const Plan& plan) {
  Subject subject("stored keys");
  for (int64_t number = plan.first; number < plan.first + plan.cases; ++number) {
    check_call(subject, plan, number);
  }
  return subject.finish();
}

}  // namespace headwise::testing

// Drawn calls against the reference: every set, both sides of a guard page, several threads.

#include "answers.h"
#include "dispatch.h"
#include "subjects.h"

namespace headwise::testing {

bool test_drawn_problems(const Plan& plan) {
  Subject forward("forward");
  Subject gradients("gradients");
  Subject biases("biases");
  Subject repeated("same bits");
  Subject tasks("workspaces");
  for (int64_t number = plan.first; number < plan.first + plan.cases; ++number) {
    const auto dtype = static_cast<Dtype>(number % kDtypes);
    const auto seed = static_cast<uint64_t>(number);
    const Problem ends(seed, dtype, Side::kEnd);
    const Problem starts(seed, dtype, Side::kStart);
    const Reference reference = compute_reference(ends);
    for (const std::string& set : plan.sets) {
      use_set(set);
      announce(set + ", " + ends.text());
      const Answers answers = run_calls(ends, 1);
      compare(ends, reference, answers, forward, gradients, biases);
      repeated.check(same_bits(answers, run_calls(ends, 2)), "two threads give other bits");
      announce(set + ", " + starts.text());
      repeated.check(same_bits(answers, run_calls(starts, 5)), "five threads give other bits");
      announce(set + ", task by task, " + ends.text());
      Answers by_task = run_tasks(ends);
      by_task.d_sinks = answers.d_sinks;
      if (ends.args.backward.call.bias.table != nullptr) by_task.d_table = answers.d_table;
      tasks.check(same_bits(answers, by_task), "a task depends on what its workspace held");
    }
  }
  const bool all[] = {forward.finish(), gradients.finish(), biases.finish(), repeated.finish(),
                      tasks.finish()};
  bool well = true;
  for (const bool one : all) well = well && one;
  return well;
}

}  // namespace headwise::testing

#include "report.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace headwise::testing {

namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kTellsOfCrashes = false;  // the sanitizer tells more
#else
constexpr bool kTellsOfCrashes = true;
#endif

constexpr int64_t kPrinted = 8;  // faults of a subject that are spelled out

char announced[1024] = "";

void on_crash(int /*number*/) {
  const char text[] = "crashed in: ";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  written = write(STDERR_FILENO, announced, std::strlen(announced));
  written = write(STDERR_FILENO, "\n", 1);
}

}  // namespace

void announce(const std::string& text) {
  std::strncpy(announced, text.c_str(), sizeof announced - 1);
}

void report_crashes() {
  if (!kTellsOfCrashes) return;
  struct sigaction action{};
  action.sa_handler = on_crash;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGSEGV, SIGBUS}) sigaction(number, &action, nullptr);
}

void Subject::check(bool holds, const std::string& what) {
  ++checks_;
  if (holds) return;
  if (++faults_ <= kPrinted) {
    std::printf("FAULT %s: %s\n  in %s\n", name_, what.c_str(), announced);
    std::fflush(stdout);
  }
}

void Subject::measure(double share, const std::string& what) {
  worst_ = std::max(worst_, share);
  check(share <= 1.0, what);
}

bool Subject::finish() const {
  std::printf("%-12s %8lld checks, %lld faults", name_, static_cast<long long>(checks_),
              static_cast<long long>(faults_));
  if (worst_ > 0.0) std::printf(", at most %.2f of a bound", worst_);
  std::printf("%s\n", checks_ == 0 ? ": nothing was checked" : "");
  std::fflush(stdout);
  return faults_ == 0 && checks_ > 0;
}

}  // namespace headwise::testing

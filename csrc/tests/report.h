// Counts of one subject: how many checks, how many failed, how near the bounds they came.
#pragma once

#include <cstdint>
#include <string>

namespace headwise::testing {

// What is being run, for the message of a crash.
void announce(const std::string& text);
// Prints it when a guard page is touched; the process ends by the signal all the same.
void report_crashes();

class Subject {
 public:
  explicit Subject(const char* name) : name_(name) {}

  // Counts a check; prints what is announced and `what` where it does not hold.
  void check(bool holds, const std::string& what);
  // Counts a check of an error measured against its bound.
  void measure(double share, const std::string& what);
  // Prints one line; returns whether all was well and something was checked.
  bool finish() const;

 private:
  const char* name_;
  int64_t checks_ = 0, faults_ = 0;
  double worst_ = 0.0;
};

}  // namespace headwise::testing

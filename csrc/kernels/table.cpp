// Gathers the functions of this instruction set.

#include "kernel_table.h"

#define HEADWISE_TEXT_OF(x) #x
#define HEADWISE_TEXT(x) HEADWISE_TEXT_OF(x)

namespace headwise::HEADWISE_ISA {

void fill_attend_tile(KernelTable& table) noexcept;
void fill_attend_few(KernelTable& table) noexcept;
void fill_attend_backward(KernelTable& table) noexcept;
void fill_bias_backward(KernelTable& table) noexcept;
void fill_linear_rows(KernelTable& table) noexcept;
void fill_linear_sums(KernelTable& table) noexcept;
void fill_random_features(KernelTable& table) noexcept;
void fill_limits(KernelTable& table) noexcept;

KernelTable make_table() noexcept {
  KernelTable table{};
  table.name = HEADWISE_TEXT(HEADWISE_ISA);
  fill_attend_tile(table);
  fill_attend_few(table);
  fill_attend_backward(table);
  fill_bias_backward(table);
  fill_linear_rows(table);
  fill_linear_sums(table);
  fill_random_features(table);
  fill_limits(table);
  return table;
}

}  // namespace headwise::HEADWISE_ISA

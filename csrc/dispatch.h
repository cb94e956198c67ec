// Which instruction sets were built, which run here, and which one is in use.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace headwise {

// Names of the sets that this processor can run, the plainest first.
std::vector<std::string> available_sets();

// The table in use: the one HEADWISE_ISA names, or else the best available.
const KernelTable& kernels();

// Puts another set in use. Throws std::invalid_argument, naming those available.
void use_set(const std::string& name);

}  // namespace headwise

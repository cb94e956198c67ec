// One attention call: which kernels, over which tasks, on how many threads.
#pragma once

#include "kernel_table.h"

namespace headwise {

// These run on at most `threads` threads; the result does not depend on how many.

void attend(const AttendArgs& args, int threads);

// Writes the gradients of query (float32, contiguous), key, value and, where asked for, sinks.
void attend_backward(BackwardArgs args, float* d_query, float* d_sinks, int threads);

// Writes the gradient of the bias: spelled out to `args.d_bias`, or by distance to `d_table`.
void bias_backward(BiasBackwardArgs args, float* d_table, int threads);

// Runs multiply-adds in registers on every thread; returns how many operations that were in all.
double multiply_add(Dtype dtype, int64_t rounds, int threads);

}  // namespace headwise

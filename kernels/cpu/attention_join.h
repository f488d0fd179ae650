// Adds up the splits of a context, see attention.h.
#pragma once
#include <algorithm>
#include <cmath>

#include "linear4.h"

namespace dart {

// One row and head over `n` splits, in order of position → out [d]. A split's `most` and `total` lie `stride` floats
// after those of the split before, its `sums` stride · d floats. `weights` [n] is scratch.
inline void join_splits(const InstructionSet& set, int n, size_t stride, const float* most, const float* total,
                        const float* sums, int d, float* weights, float* out) {
  float peak = -INFINITY, whole = 0;
  for (int s = 0; s < n; s++) peak = std::max(peak, most[s * stride]);
  for (int s = 0; s < n; s++) {
    weights[s] = std::exp(most[s * stride] - peak);
    whole += weights[s] * total[s * stride];
  }
  for (int s = 0; s < n; s++) weights[s] /= whole;
  set.combine(weights, n, sums, stride * d, d, out);
}

}  // namespace dart

// The cost of experts' phases.
#pragma once

#include "interface.h"

namespace {

// Scalar products per pair of row and expert, in a call's phases.
inline long products_of_pair(const RinglineExperts& args) {
    const long gate_up = args.phases & kRinglineGateUp ? (args.gated ? 2 : 1) * args.hidden * args.inner_part : 0;
    return gate_up + (args.phases & kRinglineDown ? args.inner * args.hidden_part : 0);
}

}  // namespace

// What the phases of experts cost.
#pragma once

#include "interface.h"

namespace {

// Products of numbers for a row and one of its experts, in the phases of a call.
inline long products_of_pair(const RinglineExperts& args) {
    const long gate_up = args.phases & kRinglineGateUp ? 2 * args.hidden * args.inner_part : 0;
    return gate_up + (args.phases & kRinglineDown ? args.inner * args.hidden_part : 0);
}

}  // namespace

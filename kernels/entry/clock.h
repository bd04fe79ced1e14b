// What the host asks of the GPU's clock, shared with Rust (crates/abi/src/clock.rs mirrors it).
#ifndef BELLPUSH_CLOCK_H
#define BELLPUSH_CLOCK_H

#include <bellpush/wire.h>

// In memory that the host maps, zeroed. Question n is the number n, from 1.
struct bp_clock_words {
  uint32_t question;   // the host's
  uint32_t pad[15];
  uint64_t ns;         // the answer: the GPU's clock when it saw the question
  uint32_t step_ns;    // between two readings that differ; 0: they never did
  uint32_t answered;   // written with the others, or after them
  uint64_t fill[6];
};
BP_ASSERT_SIZE(bp_clock_words, 128);

struct bp_clock_args {
  uint64_t words;      // struct bp_clock_words
  uint64_t limit_ns;   // bound of all waits together
  uint32_t questions;
  uint32_t reserved;
};
BP_ASSERT_SIZE(bp_clock_args, 24);

#endif

// Negative control: a shift by as many bits as there are, of a lane's number, which UndefinedBehaviorSanitizer must
// report.
#include <stdio.h>

#include <bellpush/exec.cuh>
#include "host/threads.hpp"

struct Args {
  uint64_t* out;
};

BP_KERNEL(shift, Args) { args.out[bp::tid()] = 1u << bp::tid(); }

int main() {
  std::vector<uint64_t> out(33);
  bp_host::run_threads(shift, 1, 33, 0, Args{out.data()});
  printf("%llu\n", (unsigned long long)out[32]);
}

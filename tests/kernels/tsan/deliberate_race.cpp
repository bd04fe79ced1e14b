// Negative control: the elected lane's plain store is read without a barrier. A race checker that
// does not report this checks nothing.
#include <stdio.h>

#include <bellpush/exec.cuh>
#include "host/threads.hpp"

struct Args {
  uint64_t* word;
  uint64_t* out;
};

BP_KERNEL(deliberate_race, Args) {
  if (bp::lane() == 0) *args.word = 1;
  args.out[bp::tid()] = *args.word;
}

int main() {
  uint64_t word = 0;
  std::vector<uint64_t> out(32);
  bp_host::run_threads(deliberate_race, 1, 32, 0, Args{&word, out.data()});
  printf("done\n");
}

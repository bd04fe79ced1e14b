// A 1D heat equation, half of the rod in each process: every step computes n points, puts the one at the cut into the
// peer's region, and waits for the peer's.
#include <bellpush/bellpush.cuh>

// One block is the only caller of its endpoint: exclusive, the default.
using path = bp::path<bp::data::push, bp::kick::inband>;

// Mirrored in src/main.rs.
struct heat_args {
  bp_endpoint ep;
  uint64_t u[2];    // double[n] each: the points of even and of odd steps
  uint64_t ghost;   // in the region: double[2], the peer's point at the cut, of even and of odd steps
  uint64_t signal;  // in the region, behind them: how many steps' points the peer has put
  uint64_t status;  // uint32_t: the first verb's that failed
  uint64_t n, steps;
  uint64_t right;   // 1: this is the right half, whose cut is at its point 0
  double c;
};

BP_KERNEL(heat, heat_args) {
  const bp::block_scope block;
  const double* ghosts = reinterpret_cast<const double*>(args.ghost);
  const uint64_t* signal = reinterpret_cast<const uint64_t*>(args.signal);
  const uint64_t cut = args.right ? 0 : args.n - 1;
  bp_status_code s = BP_OK;
  for (uint64_t t = 0; t < args.steps && s == BP_OK; t++) {
    const double* u = reinterpret_cast<const double*>(args.u[t & 1]);
    double* v = reinterpret_cast<double*>(args.u[~t & 1]);
    const double ghost = ghosts[t & 1];
    for (uint64_t i = bp::tid(); i < args.n; i += bp::block_threads()) {
      const double left = i ? u[i - 1] : args.right ? ghost : 0.0;
      const double right = i + 1 < args.n ? u[i + 1] : args.right ? 0.0 : ghost;
      v[i] = u[i] + args.c * ((left - 2.0 * u[i]) + right);
    }
    bp::syncthreads();
    // A peer that is a step ahead writes the other ghost: it waits for this put before it goes on.
    s = bp::put_signal<path>(args.ep, block, (~t & 1) * 8, v + cut, 8, 16, bp::signal_add{1});
    if (s == BP_OK) s = bp::wait_signal(args.ep, block, signal, t + 1);
  }
  if (s == BP_OK) s = bp::quiet<path>(args.ep, block);
  if (bp::tid() == 0) *reinterpret_cast<uint32_t*>(args.status) = s;
}

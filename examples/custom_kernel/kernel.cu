// Kernels of a program that uses bellpush: a producer that computes and sends, piece by piece, and
// a consumer on the other end that takes each piece as soon as it is there.
#include <bellpush/bellpush.cuh>

// The path that the host makes the endpoints for is push/inband. All blocks of the producer use one
// queue pair at once, so it is instantiated as shared.
using path = bp::path<bp::data::push, bp::kick::inband, bp::share::shared>;

// Mirrored in src/kernels.rs.
struct producer_args {
  bp_endpoint ep;
  uint64_t x;               // float[blocks * per_block]
  uint64_t y;               // as long, in the endpoint's region; becomes a * x + y
  uint64_t per_block;       // floats
  uint64_t signal_offset;   // in the peer's region: one word a block
  uint64_t status;          // uint32_t a block: what the verbs returned
  float a;
  uint32_t reserved;
};

struct consumer_args {
  bp_endpoint ep;
  uint64_t y;               // float[blocks * per_block], where the producer's pieces arrive
  uint64_t signals;         // uint64_t a block
  uint64_t sums;            // double a block
  uint64_t per_block;
  uint64_t status;
};

// Each block computes its piece of a * x + y and puts it into the peer's region, then raises the
// piece's signal there. It does not wait for the others, nor for its own piece to arrive.
BP_KERNEL(saxpy_and_put, producer_args) {
  const bp::block_scope block;
  const uint64_t first = bp::bid() * args.per_block;
  const float* x = reinterpret_cast<const float*>(args.x) + first;
  float* y = reinterpret_cast<float*>(args.y) + first;
  for (uint64_t i = bp::tid(); i < args.per_block; i += bp::block_threads()) y[i] = args.a * x[i] + y[i];
  bp::syncthreads();  // the whole piece is there before any thread of the block reads it to push it

  bp_status_code s = bp::put_signal<path>(args.ep, block, first * sizeof(float), y,
                                          args.per_block * sizeof(float),
                                          args.signal_offset + bp::bid() * 8, bp::signal_add{1});
  // The last block's quiet covers what the others posted before it; each asks for its own.
  if (s == BP_OK) s = bp::quiet<path>(args.ep, block);
  if (bp::tid() == 0) reinterpret_cast<uint32_t*>(args.status)[bp::bid()] = s;
}

// Each block waits for its piece and adds it up. The wait is bounded by the endpoint's timeout.
BP_KERNEL(wait_and_sum, consumer_args) {
  const bp::block_scope block;
  const uint64_t* signal = reinterpret_cast<const uint64_t*>(args.signals) + bp::bid();
  const bp_status_code s = bp::wait_signal(args.ep, block, signal, 1);
  if (bp::tid() == 0) {
    double sum = 0;
    const float* y = reinterpret_cast<const float*>(args.y) + bp::bid() * args.per_block;
    for (uint64_t i = 0; s == BP_OK && i < args.per_block; i++) sum += y[i];
    reinterpret_cast<double*>(args.sums)[bp::bid()] = sum;
    reinterpret_cast<uint32_t*>(args.status)[bp::bid()] = s;
  }
}

// A kernel of one's own that puts, with the installed headers and endpoints of the C library. Here it runs on CPU
// threads, a thread a lane (threads.hpp); nvcc compiles the same kernel.
#define BP_MAX_THREADS 64
#include <bellpush/bellpush.cuh>

using path = bp::path<bp::data::push, bp::kick::inband>;

struct put_args {
  bp_endpoint ep;
  uint64_t from, bytes, to, word, status;
};

BP_KERNEL(put_and_tell, put_args) {
  const bp::block_scope block;
  bp_status_code s = bp::put_signal<path>(args.ep, block, args.to, reinterpret_cast<const void*>(args.from), args.bytes,
                                          args.word, bp::signal_add{1});
  if (s == BP_OK) s = bp::quiet<path>(args.ep, block);
  if (bp::tid() == 0) *reinterpret_cast<uint32_t*>(args.status) = static_cast<uint32_t>(s);
}

#ifndef __CUDACC__
#include <bellpush.h>
#include <stdio.h>
#include <string.h>
#include <threads.hpp>

#define CHECK(x)                                                          \
  if (!(x)) {                                                             \
    fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, bellpush_error()); \
    return 1;                                                             \
  }

alignas(64) static unsigned char from[8192], to[8192];

int main() {
  bellpush_context* context;
  bellpush_endpoint *here, *there;
  char address[512];
  CHECK(bellpush_open("{\"executor\": \"host\"}", &context) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_new(context, "push/inband", nullptr, from, sizeof from, &here) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_new(context, "push/inband", nullptr, to, sizeof to, &there) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_address(there, address, sizeof address) > 0);
  CHECK(bellpush_endpoint_connect(here, address) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_address(here, address, sizeof address) > 0);
  CHECK(bellpush_endpoint_connect(there, address) == BELLPUSH_OK);

  uint32_t status = 99;
  put_args args = {};
  CHECK(bellpush_endpoint_device(here, &args.ep, sizeof args.ep - 8) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_device(here, &args.ep, sizeof args.ep) == BELLPUSH_OK);
  for (int i = 0; i < 5000; i++) from[i] = static_cast<unsigned char>(i * 7 >> 3);
  args.from = reinterpret_cast<uint64_t>(from);
  args.bytes = 5000;
  args.to = 64;
  args.word = 8184;
  args.status = reinterpret_cast<uint64_t>(&status);
  bp_host::run_threads(put_and_tell, 1, 64, 0, args);
  CHECK(status == BP_OK);
  CHECK(memcmp(to + 64, from, 5000) == 0);
  uint64_t word;
  memcpy(&word, to + 8184, 8);
  CHECK(word == 1);
  CHECK(bellpush_endpoint_close(here) == BELLPUSH_OK && bellpush_endpoint_close(there) == BELLPUSH_OK);
  bellpush_close(context);
  puts("kernel: right");
  return 0;
}
#endif

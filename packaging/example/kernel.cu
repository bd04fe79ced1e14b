// A kernel of one's own that puts, with the installed headers and endpoints of the C library. By nvcc it runs on GPU 0:
//
//   nvcc -std=c++17 -arch=native kernel.cu -I PREFIX/include -L PREFIX/lib -lbellpush_c -o kernel
//
// A C++ compiler makes it run on CPU threads, a thread a lane (threads.hpp).
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

#include <bellpush.h>
#include <stdio.h>
#include <string.h>

enum { BYTES = 8192, SENT = 5000, TO = 64, WORD = BYTES - 8, STATUS = BYTES - 8 };

// Memory of what the kernel runs on, copies to and from it, and a launch of 64 threads that waits for its end.
#ifdef __CUDACC__
static const char* const options = "{}";
static unsigned char* region(int) {
  void* p = nullptr;
  return cudaMalloc(&p, BYTES) == cudaSuccess && cudaMemset(p, 0, BYTES) == cudaSuccess ? (unsigned char*)p : nullptr;
}
static bool copy(void* to, const void* from, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault) == cudaSuccess;
}
static bool run(const put_args& args) {
  put_and_tell<<<1, 64>>>(args);
  return cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
}
#else
#include <threads.hpp>
static const char* const options = "{\"executor\": \"host\"}";
static unsigned char* region(int n) {
  alignas(64) static unsigned char regions[2][BYTES];
  return regions[n];
}
static bool copy(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes) != nullptr; }
static bool run(const put_args& args) {
  bp_host::run_threads(put_and_tell, 1, 64, 0, args);
  return true;
}
#endif

#define CHECK(x)                                                          \
  if (!(x)) {                                                             \
    fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, bellpush_error()); \
    return 1;                                                             \
  }

int main() {
  bellpush_context* context;
  bellpush_endpoint *here, *there;
  char address[512];
  unsigned char *from = region(0), *to = region(1);
  unsigned char sent[BYTES] = {}, got[BYTES];
  CHECK(from && to);
  CHECK(bellpush_open(options, &context) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_new(context, "push/inband", nullptr, from, BYTES, &here) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_new(context, "push/inband", nullptr, to, BYTES, &there) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_address(there, address, sizeof address) > 0);
  CHECK(bellpush_endpoint_connect(here, address) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_address(here, address, sizeof address) > 0);
  CHECK(bellpush_endpoint_connect(there, address) == BELLPUSH_OK);

  for (int i = 0; i < SENT; i++) sent[i] = static_cast<unsigned char>(i * 7 >> 3);
  memset(sent + STATUS, 0xff, 4);
  CHECK(copy(from, sent, BYTES));
  put_args args = {};
  CHECK(bellpush_endpoint_device(here, &args.ep, sizeof args.ep - 8) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_device(here, &args.ep, sizeof args.ep) == BELLPUSH_OK);
  args.from = reinterpret_cast<uint64_t>(from);
  args.bytes = SENT;
  args.to = TO;
  args.word = WORD;
  args.status = reinterpret_cast<uint64_t>(from + STATUS);
  CHECK(run(args));
  uint32_t status;
  uint64_t word;
  CHECK(copy(&status, from + STATUS, sizeof status) && status == BP_OK);
  CHECK(copy(got, to, BYTES) && memcmp(got + TO, sent, SENT) == 0);
  memcpy(&word, got + WORD, sizeof word);
  CHECK(word == 1);
  CHECK(bellpush_endpoint_close(here) == BELLPUSH_OK && bellpush_endpoint_close(there) == BELLPUSH_OK);
  bellpush_close(context);
  puts("kernel: right");
  return 0;
}

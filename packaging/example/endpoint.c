/* Two endpoints of one process, on the host executor and the software NIC, by the C library:
 *
 *   cc endpoint.c $(pkg-config --cflags --libs bellpush)
 */
#include <bellpush.h>
#include <bellpush/wire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(x)                                                                  \
  if (!(x)) {                                                                     \
    fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, bellpush_error());         \
    return 1;                                                                     \
  }

enum { BYTES = 1 << 16, WORD = BYTES - 8 };
static _Alignas(64) unsigned char near_region[BYTES], far_region[BYTES];

static int refusals(bellpush_context *context, bellpush_endpoint *end) {
  struct bp_endpoint device;
  bellpush_context *none = NULL;
  bellpush_endpoint *nobody = NULL;
  char text[512];
  CHECK(bellpush_open("{\"executor\": \"abacus\"}", &none) == BELLPUSH_REFUSED && !none);
  CHECK(bellpush_open("{\"executor\": \"host\", \"nic\": \"mlx5_77\"}", &none) == BELLPUSH_REFUSED);
  CHECK(bellpush_open("{\"executor\": \"host\", \"link\": \"shm\"}", &none) == BELLPUSH_REFUSED);
  CHECK(bellpush_open(NULL, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_new(NULL, "push/inband", NULL, near_region, BYTES, &nobody) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_new(context, NULL, NULL, near_region, BYTES, &nobody) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_new(context, "push/pigeon", NULL, near_region, BYTES, &nobody) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_new(context, "push/inband", NULL, NULL, BYTES, &nobody) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_new(context, "push/inband", NULL, near_region, 0, &nobody) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_new(context, "push/inband", "{\"slot_bytes\": 3}", near_region, BYTES, &nobody) ==
        BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_new(context, "push/inband", "{\"timeout_s\": 1e99}", near_region, BYTES, &nobody) ==
        BELLPUSH_REFUSED);
  CHECK(!nobody);
  CHECK(bellpush_endpoint_address(end, text, 3) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_address(end, NULL, sizeof text) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_connect(end, "{}") == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_connect(end, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_device(end, &device, sizeof device) == BELLPUSH_REFUSED); /* not connected */
  CHECK(bellpush_put(end, 0, 0, 8, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_put(NULL, 0, 0, 8, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_quiet(NULL) == BELLPUSH_REFUSED);
  CHECK(strcmp(bellpush_code_name(BELLPUSH_REFUSED), "BELLPUSH_REFUSED") == 0);
  return 0;
}

static double now_ns(void) {
  struct timespec time;
  timespec_get(&time, TIME_UTC);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The library's own measurement, and beside it the median of as many puts that this program times itself. */
static int bench(bellpush_context *context, bellpush_endpoint *end) {
  enum { PUTS = 1000 };
  static double taken[PUTS];
  char rows[2048];
  const char *options = "{\"paths\": [\"push/kernel\"], \"sizes\": [8, 4096]}";
  CHECK(bellpush_bench(context, options, rows, 100) == BELLPUSH_REFUSED);
  CHECK(bellpush_bench(context, "{\"paths\": [\"push/pigeon\"]}", rows, sizeof rows) == BELLPUSH_REFUSED);
  CHECK(bellpush_bench(NULL, NULL, rows, sizeof rows) == BELLPUSH_REFUSED);
  CHECK(bellpush_bench(context, options, NULL, sizeof rows) == BELLPUSH_REFUSED);
  CHECK(bellpush_bench(context, options, rows, sizeof rows) == (int)strlen(rows));
  CHECK(strstr(rows, "\"p50_ns\":") && strstr(rows, "\"error\":null"));
  puts(rows);
  for (int i = 0; i < PUTS; i++) {
    double begun = now_ns();
    CHECK(bellpush_put(end, 0, 0, 8, NULL) == BELLPUSH_OK);
    CHECK(bellpush_quiet(end) == BELLPUSH_OK);
    taken[i] = now_ns() - begun;
  }
  qsort(taken, PUTS, sizeof taken[0], by_size);
  printf("from C: 8 B by push/kernel, %.0f ns in the median\n", taken[PUTS / 2]);
  return 0;
}

int main(void) {
  bellpush_context *context = NULL;
  CHECK(bellpush_open("{\"executor\": \"host\"}", &context) == BELLPUSH_OK);
  bellpush_endpoint *near_end = NULL, *far_end = NULL;
  const char *options = "{\"receives\": 8, \"timeout_s\": 30}";
  CHECK(bellpush_endpoint_new(context, "push/kernel", options, near_region, BYTES, &near_end) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_new(context, "push/kernel", options, far_region, BYTES, &far_end) == BELLPUSH_OK);
  if (refusals(context, near_end)) return 1;

  char to_near[512], to_far[512];
  CHECK(bellpush_endpoint_address(near_end, to_near, sizeof to_near) > 0);
  CHECK(bellpush_endpoint_address(far_end, to_far, sizeof to_far) == (int)strlen(to_far));
  CHECK(bellpush_endpoint_connect(near_end, to_far) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_connect(far_end, to_near) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_connect(near_end, to_far) == BELLPUSH_REFUSED);

  for (int i = 0; i < 10000; i++) near_region[i] = (unsigned char)(i * 7 >> 3);
  CHECK(bellpush_put_signal(near_end, 512, 0, 10000, WORD, 1, NULL) == BELLPUSH_OK);
  CHECK(bellpush_quiet(near_end) == BELLPUSH_OK);
  CHECK(memcmp(far_region + 512, near_region, 10000) == 0);
  uint64_t word;
  memcpy(&word, far_region + WORD, 8);
  CHECK(word == 1);
  CHECK(bellpush_get(near_end, 20000, 512, 10000, NULL) == BELLPUSH_OK);
  CHECK(bellpush_quiet(near_end) == BELLPUSH_OK);
  CHECK(memcmp(near_region + 20000, near_region, 10000) == 0);

  uint32_t value;
  CHECK(bellpush_poll_immediate(far_end, &value) == 0);
  CHECK(bellpush_put(near_end, BYTES, 0, 8, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_put(near_end, 0, 0, 0, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_put(near_end, 0, 0, 8, &value) == BELLPUSH_REFUSED); /* the host executor has no streams */
  CHECK(bellpush_put_signal(near_end, 0, 0, 8, WORD + 4, 1, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_endpoint_reach(near_end) >= 0 && bellpush_order(context) == 0);

  if (bench(context, near_end)) return 1;
  bellpush_close(context); /* endpoints go on */
  CHECK(bellpush_put(near_end, 0, 0, 64, NULL) == BELLPUSH_OK);
  CHECK(bellpush_quiet(near_end) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_close(near_end) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_close(far_end) == BELLPUSH_OK);
  CHECK(bellpush_endpoint_close(NULL) == BELLPUSH_OK);
  puts("endpoint: right");
  return 0;
}

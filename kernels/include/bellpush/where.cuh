// Where a verb was called. With BELLPUSH_WHERE defined before the first include, WQEs say which line of which file posted
// them, and what the adversary finds about one names that line (docs/adversary.md, "The line of a kernel"). Without it,
// as ever, they say nothing, and `located<E>` is E.
//
// A control segment has the line where others have a stream of an initiator of dynamic connections. The word that a
// remote address reserves is a digest of the file's name, the line and the WQE's index, so that nobody takes for a line
// what is none, or another WQE's. The software NIC's queue pairs of device verbs look at neither.
#ifndef BELLPUSH_WHERE_CUH
#define BELLPUSH_WHERE_CUH

#include <bellpush/exec.cuh>

namespace bp {

#if defined(BELLPUSH_WHERE)

constexpr bool has_lines = true;

// Names of their own, for what differs: objects of both kinds are linked together on the host executor.
inline namespace where {

constexpr uint32_t longest_line = 0xffff;  // what is further down in a file has no line

// FNV-1a, a byte at a time; of a path the part behind the last slash.
constexpr BP_DEV uint32_t digest(uint32_t sum, uint32_t byte) { return (sum ^ (byte & 0xff)) * 16777619u; }
constexpr BP_DEV uint32_t digest_of_file(const char* path) {
  const char* name = path;
  for (const char* c = path; *c != 0; c++) {
    if (*c == '/') name = c + 1;
  }
  uint32_t sum = 2166136261u;
  for (; *name != 0; name++) sum = digest(sum, (uint32_t)*name);
  return sum;
}

// An endpoint, and who calls a verb with it: the line where it becomes one of these, by itself as an argument. A function
// of one's own that takes one has its WQEs name the line of its caller.
template <class E>
struct located : E {
  uint32_t file, line;
  located() = default;
  BP_DEV located(const E& endpoint, uint32_t the_file = digest_of_file(__builtin_FILE()),
                 uint32_t the_line = __builtin_LINE())
      : E(endpoint), file(the_file), line(the_line <= longest_line ? the_line : 0) {}
};

}  // namespace where

namespace detail {

// A part of an endpoint, or one out of a table, for whoever called with the whole.
template <class E, class Part>
BP_DEV located<Part> part_of(const located<E>& whole, const Part& part) {
  return {part, whole.file, whole.line};
}

}  // namespace detail

#else

constexpr bool has_lines = false;

// The same two where nobody asks: they are nothing.
template <class E>
using located = E;

namespace detail {

// The part.
template <class E, class Part>
BP_DEV const Part& part_of(const E&, const Part& part) {
  return part;
}

}  // namespace detail

#endif

}  // namespace bp

#endif

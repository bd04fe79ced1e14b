// Rows of `bellpush bench --post`: what the verbs cost their callers when no NIC reads the queues. Kernels of rows by
// doorbell are in post.cu, of those through a window's slots in post_slots.cu; post_floors.cu has the stores and fences
// alone.
#ifndef BELLPUSH_BENCH_POST_ROWS_CUH
#define BELLPUSH_BENCH_POST_ROWS_CUH

#include "post.cuh"

namespace {

using namespace post;
using bp::data;
using bp::kick;
using bp::order;
using bp::reach;
using bp::share;

// Queues in this GPU's memory need a fence of gpu scope, those in host memory, and windows there, one of system scope.
template <share S, reach R, order O = order::later>
using pull = bp::path<data::pull, kick::kernel, S, R, O>;
using own = pull<share::exclusive, reach::gpu>;
using own_strict = pull<share::exclusive, reach::gpu, order::strict>;
using own_system = pull<share::exclusive, reach::system>;
using own_system_strict = pull<share::exclusive, reach::system, order::strict>;
using shared = pull<share::shared, reach::gpu>;
using shared_system = pull<share::shared, reach::system>;
using shared_strict = pull<share::shared, reach::gpu, order::strict>;
using shared_system_strict = pull<share::shared, reach::system, order::strict>;
// Payload by way of a slot, which lies beside the send queue.
template <share S, reach R>
using pushed = bp::path<data::push, kick::kernel, S, R>;
using own_pushed = pushed<share::exclusive, reach::gpu>;
using own_pushed_system = pushed<share::exclusive, reach::system>;
using shared_pushed = pushed<share::shared, reach::gpu>;
using shared_pushed_system = pushed<share::shared, reach::system>;
using own_inband = bp::path<data::push, kick::inband, share::exclusive, reach::system>;
using shared_inband = bp::path<data::push, kick::inband, share::shared, reach::system>;

using thread = bp::thread_scope;
using warp = bp::warp_scope;
using block = bp::block_scope;

// Where a kernel has its endpoint. An index, or a reference to memory that a fence may have changed, makes each use of
// its words a load.
enum class at {
  argument,  // named among the kernel's arguments
  memory,    // by reference
  copied,    // from memory into a variable of its own
};

template <at A, class Body>
BP_DEV void with_endpoint(const bp_post_args& a, Body body) {
  if constexpr (A == at::argument) {
    body(a.ep);
  } else if constexpr (A == at::memory) {
    body(endpoint_of(a));
  } else {
    const bp_endpoint copy = endpoint_of(a);
    body(copy);
  }
}

// `call(ep, scope, message)` for each message of this caller.
template <class Scope, at A, class Call>
BP_DEV void each(const bp_post_args& a, Call call) {
  with_endpoint<A>(a, [&](const bp_endpoint& ep) {
    const Scope scope;
    const uint32_t first = caller_of(a, scope).number * a.calls;
    timed(a, [&](uint32_t i) { return call(ep, scope, first + i); });
  });
}

BP_DEV const void* source(const bp_post_args& a, uint32_t message) {
  return reinterpret_cast<const void*>(source_of(a, message));
}

template <class P, class Scope, at A = at::argument>
BP_DEV void puts(const bp_post_args& a) {
  constexpr uint32_t bytes = P::inband ? small_bytes : put_bytes;
  each<Scope, A>(a, [&](const bp_endpoint& ep, Scope scope, uint32_t m) {
    return bp::put<P>(ep, scope, remote_of(m), source(a, m), bytes);
  });
}

template <class P>
BP_DEV void inlines(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::put_inline<P>(ep, scope, remote_of(m), source(a, m), small_bytes);
  });
}

// What signals do to the first word of the peer's region: an addition of 1, or the message's number + 1.
struct add {
  BP_DEV bp::signal_add operator()(uint32_t) const { return {1}; }
};
struct set {
  BP_DEV bp::signal_set operator()(uint32_t m) const { return {m + 1}; }
};

template <class P, class Op = add>
BP_DEV void put_signals(const bp_post_args& a) {
  constexpr uint32_t bytes = P::inband ? small_bytes : put_bytes;
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::put_signal<P>(ep, scope, remote_of(m), source(a, m), bytes, 0, Op{}(m));
  });
}
template <class P, class Op>
BP_DEV void signals(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::signal<P>(ep, scope, 0, Op{}(m));
  });
}

// The 8 bytes that inlines() takes from memory, from a register (`source` in crates/cli/src/post/queues.rs).
template <class P>
BP_DEV void values(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    const uint64_t word = (source_of(a, m) - a.src) / 8 + 1;
    return bp::put_value<P>(ep, scope, remote_of(m), word * 0x9e3779b97f4a7c15);
  });
}

// The same with a bound of its own.
template <class P>
BP_DEV void bounded(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::put<P>(bp::within(ep, a.limit_ns), scope, remote_of(m), source(a, m), put_bytes);
  });
}

// Immediates of the message's number: with data, and alone at the peer's first byte.
template <class P>
BP_DEV void immediates(const bp_post_args& a) {
  constexpr uint32_t bytes = P::inband ? small_bytes : put_bytes;
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::put_imm<P>(ep, scope, remote_of(m), source(a, m), bytes, m);
  });
}
struct imm {
  BP_DEV bp::signal_imm operator()(uint32_t m) const { return {m}; }
};

// What brings data here: reads, and the old values of words to which 1 is added, or which become m + 1 if they are m.
template <class P>
BP_DEV void gets(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::get<P>(ep, scope, const_cast<void*>(source(a, m)), remote_of(m), put_bytes);
  });
}
template <class P>
BP_DEV void additions(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::fetch_add<P>(ep, scope, remote_of(m), 1, const_cast<void*>(source(a, m)));
  });
}
template <class P>
BP_DEV void swaps(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::compare_swap<P>(ep, scope, remote_of(m), m, m + 1, const_cast<void*>(source(a, m)));
  });
}

// Puts that do not wait for room.
template <class P>
BP_DEV void tries(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::put<P>(bp::within(ep, 0), scope, remote_of(m), source(a, m), put_bytes);
  });
}

// A look at a word that is there, and a wait for what is complete: nothing is posted.
BP_DEV void looks(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t m) {
    return bp::test_signal(ep, scope, static_cast<const uint64_t*>(source(a, m)), 1);
  });
}
// The first ticket, of a queue pair for all. Not written as 0: of a number that it knows the compiler may know the
// answer, and then nobody waits for a load.
BP_DEV uint64_t first_ticket(const bp_post_args& a) { return a.one_qp - 1; }
template <class P>
BP_DEV void waits(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t) {
    return bp::wait<P>(ep, scope, first_ticket(a));
  });
}
template <class P>
BP_DEV void tests(const bp_post_args& a) {
  each<thread, at::argument>(a, [&](const bp_endpoint& ep, thread scope, uint32_t) {
    return bp::test<P>(ep, scope, first_ticket(a));
  });
}
template <class P>
BP_DEV void counts_completed(const bp_post_args& a) {
  each<thread, at::argument>(a, [](const bp_endpoint& ep, thread scope, uint32_t) {
    return bp::completed<P>(ep, scope) == 0 ? BP_OK : BP_PENDING;
  });
}
template <class P>
BP_DEV void counts_posted(const bp_post_args& a) {
  each<thread, at::argument>(a, [](const bp_endpoint& ep, thread, uint32_t) {
    return bp::posted<P>(ep) == 0 ? BP_OK : BP_PENDING;
  });
}
template <class P>
BP_DEV void rings(const bp_post_args& a) {
  each<thread, at::argument>(a, [](const bp_endpoint& ep, thread scope, uint32_t) {
    bp::ring<P>(ep, scope);
    return BP_OK;
  });
}
template <class P>
BP_DEV void fences(const bp_post_args& a) {
  each<thread, at::argument>(a, [](const bp_endpoint& ep, thread scope, uint32_t) { return bp::fence<P>(scope, ep); });
}
// One among the arguments, and the same queue pair's by reference.
template <class P>
BP_DEV void fences_of_two(const bp_post_args& a) {
  each<thread, at::argument>(
      a, [&](const bp_endpoint& ep, thread scope, uint32_t) { return bp::fence<P>(scope, ep, endpoint_of(a)); });
}

// Waits for words that are all there.
enum class of { all, any, some };
template <class Scope, of W>
BP_DEV void watches(const bp_post_args& a) {
  each<Scope, at::argument>(a, [&](const bp_endpoint& ep, Scope scope, uint32_t) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(a.src);
    uint32_t found = 0;
    if constexpr (W == of::all) {
      return bp::wait_signal_all(ep, scope, words, BP_POST_WORDS, 1);
    } else if constexpr (W == of::any) {
      const bp_status_code s = bp::wait_signal_any(ep, scope, words, BP_POST_WORDS, 1, &found);
      return found == 0 ? s : BP_PENDING;
    } else {
      uint32_t* indices = reinterpret_cast<uint32_t*>(a.list + messages * sizeof(bp::message));
      const bp_status_code s = bp::wait_signal_some(ep, scope, words, BP_POST_WORDS, 1, indices, &found);
      return found == BP_POST_WORDS ? s : BP_PENDING;
    }
  });
}

// Batches of puts of which only the last one rings.
template <class P, class Scope>
BP_DEV void deferred(const bp_post_args& a) {
  each<Scope, at::argument>(a, [&](const bp_endpoint& ep, Scope scope, uint32_t call) {
    bp_status_code s = BP_OK;
    BP_NO_UNROLL for (uint32_t k = 0; k < batch && s == BP_OK; k++) {
      const uint32_t m = call * batch + k;
      s = bp::put<P>(ep, scope, remote_of(m), source(a, m), put_bytes, k == batch - 1 ? bp::none : bp::defer_ring);
    }
    return s;
  });
}

// Batches by a warp, a put a lane, and one ring for all.
template <class P>
BP_DEV void deferred_by_lanes(const bp_post_args& a) {
  each<warp, at::argument>(a, [&](const bp_endpoint& ep, warp scope, uint32_t call) {
    const uint32_t m = call * batch + scope.rank();
    const bp_status_code s = bp::put<P>(ep, thread{}, remote_of(m), source(a, m), put_bytes, bp::defer_ring);
    bp::ring<P>(ep, scope);
    return s;
  });
}

// Every lane of full warps calls with a message of its own.
template <class P, at A = at::argument>
BP_DEV void by_lanes(const bp_post_args& a) {
  constexpr uint32_t bytes = P::inband ? small_bytes : put_bytes;
  each<thread, A>(a, [&](const bp_endpoint& ep, thread, uint32_t m) {
    return bp::put<P>(ep, bp::lanes_scope{}, remote_of(m), source(a, m), bytes);
  });
}

// Batches by one call each.
template <class P, class Scope, at A = at::argument>
BP_DEV void batches(const bp_post_args& a) {
  constexpr uint32_t bytes = P::inband ? small_bytes : put_bytes;
  each<Scope, A>(a, [&](const bp_endpoint& ep, Scope scope, uint32_t call) {
    const auto list = [&](uint32_t k) {
      const uint32_t m = call * batch + k;
      return bp::message{remote_of(m), source(a, m), bytes};
    };
    return bp::put_batch<P>(ep, scope, batch, list, bp::none, nullptr);
  });
}
// The same batches as rows of one array, and as a list in memory.
template <class P, class Scope>
BP_DEV void strided(const bp_post_args& a) {
  each<Scope, at::argument>(a, [&](const bp_endpoint& ep, Scope scope, uint32_t call) {
    const uint32_t m = call * batch;
    return bp::put_strided<P>(ep, scope, batch, remote_of(m), 64, source(a, m), 64, put_bytes);
  });
}
template <class P, class Scope>
BP_DEV void vectors(const bp_post_args& a) {
  each<Scope, at::argument>(a, [&](const bp_endpoint& ep, Scope scope, uint32_t call) {
    const bp::message* list = reinterpret_cast<const bp::message*>(a.list) + call * batch % messages;
    return bp::put_vector<P>(ep, scope, batch, list);
  });
}

}  // namespace

#endif

// Entry points of `bellpush bench --post`: what the verbs cost their callers when no NIC reads the queues.
// post_floors.cu has the stores and fences alone.
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
template <class P>
BP_DEV void waits(const bp_post_args& a) {
  each<thread, at::argument>(a, [](const bp_endpoint& ep, thread scope, uint32_t) {
    return bp::wait<P>(ep, scope, 0);
  });
}
template <class P>
BP_DEV void tests(const bp_post_args& a) {
  each<thread, at::argument>(a, [](const bp_endpoint& ep, thread scope, uint32_t) {
    return bp::test<P>(ep, scope, 0);
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
  each<Scope, A>(a, [&](const bp_endpoint& ep, Scope scope, uint32_t call) {
    const auto list = [&](uint32_t k) {
      const uint32_t m = call * batch + k;
      return bp::message{remote_of(m), source(a, m), put_bytes};
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

BP_KERNEL(bp_post_put_thread, bp_post_args) { puts<own, thread>(args); }
BP_KERNEL(bp_post_put_thread_memory, bp_post_args) { puts<own, thread, at::memory>(args); }
BP_KERNEL(bp_post_put_thread_copied, bp_post_args) { puts<own, thread, at::copied>(args); }
BP_KERNEL(bp_post_put_thread_strict, bp_post_args) { puts<own_strict, thread>(args); }
BP_KERNEL(bp_post_put_warp, bp_post_args) { puts<own, warp>(args); }
BP_KERNEL(bp_post_put_block, bp_post_args) { puts<own, block>(args); }
BP_KERNEL(bp_post_put_thread_system, bp_post_args) { puts<own_system, thread>(args); }
BP_KERNEL(bp_post_put_thread_system_memory, bp_post_args) { puts<own_system, thread, at::memory>(args); }
BP_KERNEL(bp_post_put_thread_system_copied, bp_post_args) { puts<own_system, thread, at::copied>(args); }
BP_KERNEL(bp_post_put_thread_system_strict, bp_post_args) { puts<own_system_strict, thread>(args); }
BP_KERNEL(bp_post_put_warp_system, bp_post_args) { puts<own_system, warp>(args); }
BP_KERNEL(bp_post_put_block_system, bp_post_args) { puts<own_system, block>(args); }

BP_KERNEL(bp_post_signal, bp_post_args) { put_signals<own>(args); }
BP_KERNEL(bp_post_signal_system, bp_post_args) { put_signals<own_system>(args); }
BP_KERNEL(bp_post_signal_shared, bp_post_args) { put_signals<shared>(args); }
BP_KERNEL(bp_post_put_set, bp_post_args) { put_signals<own, set>(args); }
BP_KERNEL(bp_post_put_set_system, bp_post_args) { put_signals<own_system, set>(args); }
BP_KERNEL(bp_post_signal_alone, bp_post_args) { signals<own, add>(args); }
BP_KERNEL(bp_post_set_alone, bp_post_args) { signals<own, set>(args); }
BP_KERNEL(bp_post_set_alone_system, bp_post_args) { signals<own_system, set>(args); }
BP_KERNEL(bp_post_set_alone_shared, bp_post_args) { signals<shared, set>(args); }
BP_KERNEL(bp_post_signal_inband, bp_post_args) { put_signals<own_inband>(args); }
BP_KERNEL(bp_post_signal_inband_shared, bp_post_args) { put_signals<shared_inband>(args); }
BP_KERNEL(bp_post_signal_alone_inband, bp_post_args) { signals<own_inband, add>(args); }
BP_KERNEL(bp_post_signal_alone_inband_shared, bp_post_args) { signals<shared_inband, add>(args); }
BP_KERNEL(bp_post_set_alone_inband, bp_post_args) { signals<own_inband, set>(args); }
BP_KERNEL(bp_post_value, bp_post_args) { values<own>(args); }
BP_KERNEL(bp_post_value_system, bp_post_args) { values<own_system>(args); }
BP_KERNEL(bp_post_value_shared, bp_post_args) { values<shared>(args); }
BP_KERNEL(bp_post_value_inband, bp_post_args) { values<own_inband>(args); }
BP_KERNEL(bp_post_value_inband_shared, bp_post_args) { values<shared_inband>(args); }
BP_KERNEL(bp_post_try, bp_post_args) { tries<own>(args); }
BP_KERNEL(bp_post_try_shared, bp_post_args) { tries<shared>(args); }
BP_KERNEL(bp_post_test_signal, bp_post_args) { looks(args); }
BP_KERNEL(bp_post_wait, bp_post_args) { waits<own>(args); }
BP_KERNEL(bp_post_wait_shared, bp_post_args) { waits<shared>(args); }
BP_KERNEL(bp_post_bounded, bp_post_args) { bounded<own>(args); }
BP_KERNEL(bp_post_imm, bp_post_args) { immediates<own>(args); }
BP_KERNEL(bp_post_imm_system, bp_post_args) { immediates<own_system>(args); }
BP_KERNEL(bp_post_imm_shared, bp_post_args) { immediates<shared>(args); }
BP_KERNEL(bp_post_imm_inband, bp_post_args) { immediates<own_inband>(args); }
BP_KERNEL(bp_post_imm_inband_shared, bp_post_args) { immediates<shared_inband>(args); }
BP_KERNEL(bp_post_imm_alone, bp_post_args) { signals<own, imm>(args); }
BP_KERNEL(bp_post_get, bp_post_args) { gets<own>(args); }
BP_KERNEL(bp_post_get_system, bp_post_args) { gets<own_system>(args); }
BP_KERNEL(bp_post_get_shared, bp_post_args) { gets<shared>(args); }
BP_KERNEL(bp_post_fetch_add, bp_post_args) { additions<own>(args); }
BP_KERNEL(bp_post_fetch_add_system, bp_post_args) { additions<own_system>(args); }
BP_KERNEL(bp_post_fetch_add_shared, bp_post_args) { additions<shared>(args); }
BP_KERNEL(bp_post_compare_swap, bp_post_args) { swaps<own>(args); }
BP_KERNEL(bp_post_compare_swap_system, bp_post_args) { swaps<own_system>(args); }
BP_KERNEL(bp_post_compare_swap_shared, bp_post_args) { swaps<shared>(args); }
BP_KERNEL(bp_post_test, bp_post_args) { tests<own>(args); }
BP_KERNEL(bp_post_completed, bp_post_args) { counts_completed<own>(args); }
BP_KERNEL(bp_post_completed_shared, bp_post_args) { counts_completed<shared>(args); }
BP_KERNEL(bp_post_posted, bp_post_args) { counts_posted<own>(args); }
BP_KERNEL(bp_post_ring, bp_post_args) { rings<own>(args); }
BP_KERNEL(bp_post_fence, bp_post_args) { fences<own>(args); }
BP_KERNEL(bp_post_fence_two, bp_post_args) { fences_of_two<own>(args); }
BP_KERNEL(bp_post_watch_all, bp_post_args) { watches<warp, of::all>(args); }
BP_KERNEL(bp_post_watch_any, bp_post_args) { watches<warp, of::any>(args); }
BP_KERNEL(bp_post_watch_some, bp_post_args) { watches<warp, of::some>(args); }
BP_KERNEL(bp_post_inline, bp_post_args) { inlines<own>(args); }
BP_KERNEL(bp_post_inline_system, bp_post_args) { inlines<own_system>(args); }

BP_KERNEL(bp_post_inband_thread, bp_post_args) { puts<own_inband, thread>(args); }
BP_KERNEL(bp_post_inband_warp, bp_post_args) { puts<own_inband, warp>(args); }
BP_KERNEL(bp_post_inband_block, bp_post_args) { puts<own_inband, block>(args); }
BP_KERNEL(bp_post_inband_shared, bp_post_args) { puts<shared_inband, thread>(args); }

BP_KERNEL(bp_post_put_shared, bp_post_args) { puts<shared, thread>(args); }
BP_KERNEL(bp_post_put_shared_copied, bp_post_args) { puts<shared, thread, at::copied>(args); }
BP_KERNEL(bp_post_put_shared_system, bp_post_args) { puts<shared_system, thread>(args); }
BP_KERNEL(bp_post_put_shared_strict, bp_post_args) { puts<shared_strict, thread>(args); }
BP_KERNEL(bp_post_put_shared_system_strict, bp_post_args) { puts<shared_system_strict, thread>(args); }

BP_KERNEL(bp_post_deferred_thread, bp_post_args) { deferred<own, thread>(args); }
BP_KERNEL(bp_post_deferred_warp, bp_post_args) { deferred<own, warp>(args); }
BP_KERNEL(bp_post_deferred_shared, bp_post_args) { deferred_by_lanes<shared>(args); }

BP_KERNEL(bp_post_lanes_shared, bp_post_args) { by_lanes<shared>(args); }
BP_KERNEL(bp_post_lanes_shared_copied, bp_post_args) { by_lanes<shared, at::copied>(args); }
BP_KERNEL(bp_post_lanes_inband, bp_post_args) { by_lanes<shared_inband>(args); }
BP_KERNEL(bp_post_batch_thread, bp_post_args) { batches<own, thread>(args); }
BP_KERNEL(bp_post_batch_warp, bp_post_args) { batches<own, warp>(args); }
BP_KERNEL(bp_post_strided_thread, bp_post_args) { strided<own, thread>(args); }
BP_KERNEL(bp_post_strided_warp, bp_post_args) { strided<own, warp>(args); }
BP_KERNEL(bp_post_vector_thread, bp_post_args) { vectors<own, thread>(args); }
BP_KERNEL(bp_post_vector_warp, bp_post_args) { vectors<own, warp>(args); }
BP_KERNEL(bp_post_batch_warp_copied, bp_post_args) { batches<own, warp, at::copied>(args); }
BP_KERNEL(bp_post_batch_shared_thread, bp_post_args) { batches<shared, thread>(args); }
BP_KERNEL(bp_post_batch_shared_warp, bp_post_args) { batches<shared, warp>(args); }

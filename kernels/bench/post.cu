// Entry points of `bellpush bench --post` that ring a doorbell, or post nothing.
#include "post_rows.cuh"

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
BP_KERNEL(bp_post_value, bp_post_args) { values<own>(args); }
BP_KERNEL(bp_post_value_system, bp_post_args) { values<own_system>(args); }
BP_KERNEL(bp_post_value_shared, bp_post_args) { values<shared>(args); }
BP_KERNEL(bp_post_try, bp_post_args) { tries<own>(args); }
BP_KERNEL(bp_post_try_shared, bp_post_args) { tries<shared>(args); }
BP_KERNEL(bp_post_test_signal, bp_post_args) { looks(args); }
BP_KERNEL(bp_post_wait, bp_post_args) { waits<own>(args); }
BP_KERNEL(bp_post_wait_shared, bp_post_args) { waits<shared>(args); }
BP_KERNEL(bp_post_bounded, bp_post_args) { bounded<own>(args); }
BP_KERNEL(bp_post_imm, bp_post_args) { immediates<own>(args); }
BP_KERNEL(bp_post_imm_system, bp_post_args) { immediates<own_system>(args); }
BP_KERNEL(bp_post_imm_shared, bp_post_args) { immediates<shared>(args); }
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
BP_KERNEL(bp_post_batch_thread, bp_post_args) { batches<own, thread>(args); }
BP_KERNEL(bp_post_batch_warp, bp_post_args) { batches<own, warp>(args); }
BP_KERNEL(bp_post_strided_thread, bp_post_args) { strided<own, thread>(args); }
BP_KERNEL(bp_post_strided_warp, bp_post_args) { strided<own, warp>(args); }
BP_KERNEL(bp_post_vector_thread, bp_post_args) { vectors<own, thread>(args); }
BP_KERNEL(bp_post_vector_warp, bp_post_args) { vectors<own, warp>(args); }
BP_KERNEL(bp_post_batch_warp_copied, bp_post_args) { batches<own, warp, at::copied>(args); }
BP_KERNEL(bp_post_batch_shared_thread, bp_post_args) { batches<shared, thread>(args); }
BP_KERNEL(bp_post_batch_shared_warp, bp_post_args) { batches<shared, warp>(args); }

BP_KERNEL(bp_post_signal_shared_system, bp_post_args) { put_signals<shared_system>(args); }
BP_KERNEL(bp_post_inline_shared, bp_post_args) { inlines<shared>(args); }
BP_KERNEL(bp_post_test_shared, bp_post_args) { tests<shared>(args); }
BP_KERNEL(bp_post_ring_shared, bp_post_args) { rings<shared>(args); }
BP_KERNEL(bp_post_fence_shared, bp_post_args) { fences<shared>(args); }
BP_KERNEL(bp_post_batch_warp_system, bp_post_args) { batches<own_system, warp>(args); }
BP_KERNEL(bp_post_batch_warp_system_copied, bp_post_args) { batches<own_system, warp, at::copied>(args); }

// Entry points of `bellpush bench --post` whose payload goes through a window's slots: in-band, or behind a WQE and a
// doorbell.
#include "post_rows.cuh"

BP_KERNEL(bp_post_push_thread, bp_post_args) { puts<own_pushed, thread>(args); }
BP_KERNEL(bp_post_push_warp, bp_post_args) { puts<own_pushed, warp>(args); }
BP_KERNEL(bp_post_push_thread_system, bp_post_args) { puts<own_pushed_system, thread>(args); }
BP_KERNEL(bp_post_push_warp_system, bp_post_args) { puts<own_pushed_system, warp>(args); }
BP_KERNEL(bp_post_push_shared, bp_post_args) { puts<shared_pushed, thread>(args); }
BP_KERNEL(bp_post_push_shared_system, bp_post_args) { puts<shared_pushed_system, thread>(args); }
BP_KERNEL(bp_post_push_batch_warp, bp_post_args) { batches<own_pushed, warp>(args); }
BP_KERNEL(bp_post_push_batch_warp_system, bp_post_args) { batches<own_pushed_system, warp>(args); }

BP_KERNEL(bp_post_signal_inband, bp_post_args) { put_signals<own_inband>(args); }
BP_KERNEL(bp_post_signal_inband_shared, bp_post_args) { put_signals<shared_inband>(args); }
BP_KERNEL(bp_post_signal_alone_inband, bp_post_args) { signals<own_inband, add>(args); }
BP_KERNEL(bp_post_signal_alone_inband_shared, bp_post_args) { signals<shared_inband, add>(args); }
BP_KERNEL(bp_post_set_alone_inband, bp_post_args) { signals<own_inband, set>(args); }
BP_KERNEL(bp_post_value_inband, bp_post_args) { values<own_inband>(args); }
BP_KERNEL(bp_post_value_inband_shared, bp_post_args) { values<shared_inband>(args); }
BP_KERNEL(bp_post_imm_inband, bp_post_args) { immediates<own_inband>(args); }
BP_KERNEL(bp_post_imm_inband_shared, bp_post_args) { immediates<shared_inband>(args); }
BP_KERNEL(bp_post_inband_thread, bp_post_args) { puts<own_inband, thread>(args); }
BP_KERNEL(bp_post_inband_warp, bp_post_args) { puts<own_inband, warp>(args); }
BP_KERNEL(bp_post_inband_block, bp_post_args) { puts<own_inband, block>(args); }
BP_KERNEL(bp_post_inband_shared, bp_post_args) { puts<shared_inband, thread>(args); }
BP_KERNEL(bp_post_lanes_inband, bp_post_args) { by_lanes<shared_inband>(args); }
BP_KERNEL(bp_post_inline_inband, bp_post_args) { inlines<own_inband>(args); }
BP_KERNEL(bp_post_get_inband, bp_post_args) { gets<own_inband>(args); }
BP_KERNEL(bp_post_fetch_add_inband, bp_post_args) { additions<own_inband>(args); }
BP_KERNEL(bp_post_batch_inband, bp_post_args) { batches<own_inband, thread>(args); }
BP_KERNEL(bp_post_batch_warp_inband, bp_post_args) { batches<own_inband, warp>(args); }

// Entry points of all-reduce, by every path that kernels post on.
#define BP_MAX_THREADS 512
#include "collective/collective.cuh"
#include "paths.h"

BP_KERNEL(bp_all_reduce_push_kernel, bp_coll_args) { bp::coll::all_reduce<push_kernel>(args); }
BP_KERNEL(bp_all_reduce_push_blueflame, bp_coll_args) { bp::coll::all_reduce<push_blueflame>(args); }
BP_KERNEL(bp_all_reduce_push_inband_12_4, bp_coll_args) { bp::coll::all_reduce<push_inband_12_4>(args); }
BP_KERNEL(bp_all_reduce_push_inband_14_2, bp_coll_args) { bp::coll::all_reduce<push_inband_14_2>(args); }
BP_KERNEL(bp_all_reduce_push_inband_60_4, bp_coll_args) { bp::coll::all_reduce<push_inband_60_4>(args); }
BP_KERNEL(bp_all_reduce_pull_kernel, bp_coll_args) { bp::coll::all_reduce<pull_kernel>(args); }
BP_KERNEL(bp_all_reduce_pull_blueflame, bp_coll_args) { bp::coll::all_reduce<pull_blueflame>(args); }

BP_KERNEL(bp_all_reduce_ll_push_kernel, bp_coll_args) { bp::coll::all_reduce_ll<push_kernel>(args); }
BP_KERNEL(bp_all_reduce_ll_push_blueflame, bp_coll_args) { bp::coll::all_reduce_ll<push_blueflame>(args); }
BP_KERNEL(bp_all_reduce_ll_push_inband_12_4, bp_coll_args) { bp::coll::all_reduce_ll<push_inband_12_4>(args); }
BP_KERNEL(bp_all_reduce_ll_push_inband_14_2, bp_coll_args) { bp::coll::all_reduce_ll<push_inband_14_2>(args); }
BP_KERNEL(bp_all_reduce_ll_push_inband_60_4, bp_coll_args) { bp::coll::all_reduce_ll<push_inband_60_4>(args); }
BP_KERNEL(bp_all_reduce_ll_pull_kernel, bp_coll_args) { bp::coll::all_reduce_ll<pull_kernel>(args); }
BP_KERNEL(bp_all_reduce_ll_pull_blueflame, bp_coll_args) { bp::coll::all_reduce_ll<pull_blueflame>(args); }

BP_KERNEL(bp_drain_push_kernel, bp_coll_args) { bp::coll::drain<push_kernel>(args); }
BP_KERNEL(bp_drain_push_blueflame, bp_coll_args) { bp::coll::drain<push_blueflame>(args); }
BP_KERNEL(bp_drain_push_inband_12_4, bp_coll_args) { bp::coll::drain<push_inband_12_4>(args); }
BP_KERNEL(bp_drain_push_inband_14_2, bp_coll_args) { bp::coll::drain<push_inband_14_2>(args); }
BP_KERNEL(bp_drain_push_inband_60_4, bp_coll_args) { bp::coll::drain<push_inband_60_4>(args); }
BP_KERNEL(bp_drain_pull_kernel, bp_coll_args) { bp::coll::drain<pull_kernel>(args); }
BP_KERNEL(bp_drain_pull_blueflame, bp_coll_args) { bp::coll::drain<pull_blueflame>(args); }

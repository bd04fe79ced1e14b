// The paths that our own kernels are built for, by the name that the host asks for; and how they call verbs.
#ifndef BELLPUSH_PATHS_H
#define BELLPUSH_PATHS_H

#include <bellpush/auto.cuh>
#include <bellpush/path.cuh>

using push_kernel = bp::path<bp::data::push, bp::kick::kernel>;
using push_blueflame = bp::path<bp::data::push, bp::kick::blueflame>;
using pull_kernel = bp::path<bp::data::pull, bp::kick::kernel>;
using pull_blueflame = bp::path<bp::data::pull, bp::kick::blueflame>;

// The same for a NIC that reads the doorbell record when the doorbell reaches it.
template <bp::data D, bp::kick K>
using strict = bp::path<D, K, bp::share::exclusive, bp::reach::system, bp::order::strict>;
using push_kernel_strict = strict<bp::data::push, bp::kick::kernel>;
using push_blueflame_strict = strict<bp::data::push, bp::kick::blueflame>;
using pull_kernel_strict = strict<bp::data::pull, bp::kick::kernel>;
using pull_blueflame_strict = strict<bp::data::pull, bp::kick::blueflame>;

// The same where window, send queue and doorbell record lie in this GPU's memory.
template <bp::data D>
using near = bp::path<D, bp::kick::kernel, bp::share::exclusive, bp::reach::gpu>;
using push_kernel_near = near<bp::data::push>;
using pull_kernel_near = near<bp::data::pull>;

template <bp::line L, bp::share S = bp::share::exclusive>
using push_inband = bp::path<bp::data::push, bp::kick::inband, S, bp::reach::system,
                             bp::order::later, L>;
using push_inband_12_4 = push_inband<bp::line::d12s4>;
using push_inband_14_2 = push_inband<bp::line::d14s2>;
using push_inband_60_4 = push_inband<bp::line::d60s4>;

using shared_push_kernel = bp::path<bp::data::push, bp::kick::kernel, bp::share::shared>;
using shared_pull_kernel = bp::path<bp::data::pull, bp::kick::kernel, bp::share::shared>;
using shared_push_inband = push_inband<bp::line::d12s4, bp::share::shared>;

// Auto endpoints: one caller at a time, for the software NIC, queues in this GPU's memory, silicon; and many callers.
using auto_later = bp::auto_path<>;
using auto_near = bp::auto_path<bp::share::exclusive, bp::reach::gpu>;
using auto_strict = bp::auto_path<bp::share::exclusive, bp::reach::system, bp::order::strict>;
using shared_auto = bp::auto_path<bp::share::shared>;

// A function that calls one verb. Out of line: one kernel with all of them inlined takes ptxas minutes.
#if defined(__CUDACC__)
#define BP_CALL template <class P, class Scope> __device__ __noinline__ bp_status_code
#else
#define BP_CALL template <class P, class Scope> bp_status_code
#endif

#endif

// The paths that our own kernels are built for, by the name that the host asks for.
// Included by entry-point files after defining BP_PATH(name, type).
BP_PATH(push_kernel, bp::path<bp::data::push, bp::kick::kernel>)
BP_PATH(push_blueflame, bp::path<bp::data::push, bp::kick::blueflame>)
BP_PATH(push_inband_12_4, bp::path<bp::data::push, bp::kick::inband>)
BP_PATH(push_inband_14_2, bp::path<bp::data::push, bp::kick::inband, bp::share::exclusive,
                                   bp::reach::system, bp::order::later, bp::line::d14s2>)
BP_PATH(push_inband_60_4, bp::path<bp::data::push, bp::kick::inband, bp::share::exclusive,
                                   bp::reach::system, bp::order::later, bp::line::d60s4>)
BP_PATH(pull_kernel, bp::path<bp::data::pull, bp::kick::kernel>)
BP_PATH(pull_blueflame, bp::path<bp::data::pull, bp::kick::blueflame>)

//! Commands of the pages, by how they begin, and how each is run.

/// How a command is run.
pub enum How {
    /// By this test, with words of it replaced and some put behind it, which make it shorter.
    Here(&'static [(&'static str, &'static str)], &'static str),
    /// By another test, as `file::test`.
    There(&'static str),
    /// By none.
    Not(&'static str),
}
use How::{Here, Not, There};

const QUICK: &str = "--messages 20 --seconds 0.01";
const PINGPONGS: &str = "tests/external/shim.rs::pingpongs_of_each_service_polling_and_with_events";
const PERFTEST: &str = "tests/external/perftest.rs::perftest_finds_the_device_and_verifies";
const RPING: &str = "tests/external/rdma_cm.rs::rping_pings";
const STENCIL: &str = "tests/cli/examples.rs::stencil_has_every_point_right_in_both_processes";
const EXAMPLE: &str = "tests/cli/examples.rs::custom_kernel_computes_sends_and_sums";
const TRACES: &str =
    "tests/external/trace.rs::a_programs_wqes_and_waits_are_in_its_trace_and_two_traces_become_one";
const STANDS: &str = "tests/external/trace.rs::a_run_that_is_killed_says_what_it_waited_for";
const RECORDS: &str = "tests/external/record.rs::two_runs_are_compared_and_one_is_shown";
const CAPTURES: &str = "tests/cli/pcie.rs::topo_reads_captures_of_other_machines";
const PAGES: &str = "tests/cli/decode.rs::what_the_documentation_shows_is_what_comes";
const APART: &str = "tests/cli/apart.rs::every_path_is_verified_by_the_other_side";
const BUILDS: &str = "it builds, as all tests are built";
const COPY: &str = "tests/cli/documented/long.rs::a_copy_of_the_example_is_a_crate_of_its_own";
const ALL_REDUCE: &str = "tests/cli/documented/long.rs::ranks_are_threads_and_processes";
const LIVE: &str = "tests/external/doctor.rs::a_card_is_measured_and_says_what_it_has";
const CARD: &str = "it wants a card";
const STEPS: &str = "it is what runs the tests, or a step of that";

/// Commands by how they begin; of several that fit, the longest counts.
pub const COMMANDS: &[(&str, How)] = &[
    ("bellpush bench", Here(&[("8..4KiB", "8..64"), ("--messages 1000", "")], QUICK)),
    ("bellpush bench #", Here(&[("#", "--sizes 8,64 --messages 20 --seconds 0.01 #")], "")),
    (
        "bellpush bench --data auto,push,pull",
        Here(&[("bellpush bench", "bellpush bench --sizes 8,64")], QUICK),
    ),
    (
        "bellpush bench --trace",
        Here(&[("bellpush bench", "bellpush bench --sizes 8 --data push")], QUICK),
    ),
    (
        "bellpush bench --tune",
        There("tests/cli/tune.rs::tuning_keeps_a_table_with_which_auto_is_measured"),
    ),
    ("bellpush bench --post", There("tests/cli/post.rs::every_row_is_verified_and_has_its_floor")),
    ("bellpush bench --listen", There(APART)),
    ("bellpush bench --connect", There(APART)),
    ("bellpush bench --nic mlx5_0", Not(CARD)),
    ("bellpush compare", Here(&[], "")),
    ("bellpush show", Here(&[], "")),
    ("bellpush sim", Here(&[], "")),
    // 40 s on one core.
    (
        "bellpush sim --validate",
        There("tests/cli/pcie/sim.rs::validate_says_which_rows_are_fitted"),
    ),
    (
        "bellpush sim --report",
        There("tests/cli/pcie/sim.rs::sim_report_is_one_page_with_every_sweep"),
    ),
    ("bellpush topo", Here(&[], "")),
    ("bellpush topo #", There("tests/cli/pcie.rs::topo_reads_the_running_machine")),
    ("bellpush topo --sysfs", There("tests/cli/pcie.rs::topo_reads_the_running_machine")),
    ("bellpush topo --from", There(CAPTURES)),
    ("bellpush topo --nvidia-smi", There(CAPTURES)),
    ("bellpush topo ...", Here(&[("...", "dgx-h100")], "")),
    ("bellpush link --json", There("tests/cli/pcie.rs::topo_takes_what_link_measured")),
    ("bellpush doctor", Here(&[], "")),
    ("bellpush doctor --live --nic", There(LIVE)),
    ("bellpush doctor --trace", There(STANDS)),
    ("dmesg | bellpush decode", Here(&[("dmesg", "cat dmesg.txt")], "")),
    ("bellpush decode wqe sq.hex", Here(&[], "")),
    ("bellpush decode pcap", Here(&[], "")),
    (
        "bellpush decode record",
        There("tests/external/record.rs::what_perftest_had_of_the_device_is_the_same_again"),
    ),
    (
        "bellpush decode live",
        There("tests/external/record.rs::a_device_is_decoded_while_its_program_runs"),
    ),
    ("bellpush decode cqe dmesg.txt", There(PAGES)),
    ("bellpush decode wqe write.hex", There(PAGES)),
    ("bellpush decode wqe bad.hex", There(PAGES)),
    ("bellpush soak --minutes", There("tests/cli/soak.rs::a_short_run_is_clean")),
    ("bellpush soak --seed", There("tests/cli/soak.rs::a_round_is_made_of_the_same_each_time")),
    ("bellpush run -- bellpush doctor", There(LIVE)),
    ("bellpush run -- ib_write_bw", There(PERFTEST)),
    (
        "bellpush run -- ibv_devinfo",
        There("tests/external/shim.rs::devices_say_that_they_are_software_and_where_they_are"),
    ),
    ("bellpush run -- ibv_rc_pingpong", There(PINGPONGS)),
    ("bellpush run -- ib_send_lat", There(STANDS)),
    ("bellpush run -- rping", There(RPING)),
    (
        "bellpush run -- bellpush bench --nic",
        There("tests/external/doctor.rs::a_bench_takes_the_device_for_a_card"),
    ),
    (
        "bellpush run -- ./program",
        There("tests/external/shim.rs::operations_of_each_kind_carry_their_bytes"),
    ),
    ("bellpush run -- env UCX_TLS", There("tests/external/mpi.rs::open_mpi_over_ucx")),
    (
        "bellpush run --adversary",
        There(
            "tests/external/adversary.rs::programs_that_rely_on_more_are_told_of_and_keep_their_status",
        ),
    ),
    (
        "bellpush run --fault",
        There("tests/external/scripted.rs::a_program_gets_the_status_that_a_script_names"),
    ),
    (
        "bellpush run --record",
        There("tests/external/record.rs::what_perftest_had_of_the_device_is_the_same_again"),
    ),
    (
        "bellpush run --stats",
        There("tests/external/trace.rs::a_run_counts_and_serves_its_counters_while_it_lasts"),
    ),
    (
        "BELLPUSH_LOG=debug",
        There("tests/external/trace.rs::what_a_device_logs_is_off_until_it_is_asked_for"),
    ),
    (
        "PYTHONPATH=capi BELLPUSH_LIBRARY=libbellpush_c.so python3 packaging/try-tensors.py",
        There(
            "tests/external/python.rs::arrays_of_the_libraries_that_are_here_send_and_are_refused",
        ),
    ),
    (
        "LD_PRELOAD=",
        There("tests/external/closing.rs::a_program_that_goes_on_as_its_own_child_has_its_devices"),
    ),
    ("bellpush trace -o send.json", There(TRACES)),
    ("bellpush trace -o both.json", There(TRACES)),
    ("bellpush trace -o client.json", There(STANDS)),
    ("bellpush trace --explain", There(STANDS)),
    ("bellpush replay", There(RECORDS)),
    ("cargo run -p custom_kernel", There(EXAMPLE)),
    ("cargo run -p stencil", There(STENCIL)),
    ("cargo run --manifest-path ../mine/Cargo.toml host", There(COPY)),
    ("cp -r examples/custom_kernel ../mine", There(COPY)),
    ("cp Cargo.lock ../mine", There(COPY)),
    ("sed -i", There(COPY)),
    ("printf", There(COPY)),
    ("cargo run --release --package allreduce", There(ALL_REDUCE)),
    ("mpirun -np 4 target/release/allreduce", There(ALL_REDUCE)),
    ("torchrun", Not("it wants PyTorch with CUDA")),
    ("export BELLPUSH_ROOT", There(ALL_REDUCE)),
    (
        "cc endpoint.c",
        There(
            "tests/packages/prefix.rs::programs_are_built_against_an_installation_wherever_it_is",
        ),
    ),
    ("tar -C DIR", Here(&[], "")),
    ("cargo build", Not(BUILDS)),
    ("cargo test", Not(STEPS)),
    ("./x test", Not(STEPS)),
    ("./x mutants", Not(STEPS)),
    ("./x setup", Not("it installs packages; tests/cli/front_door.rs runs its parts")),
    ("./x package wheel", There("tests/packages/door.rs::a_wheel_is_packaged_by_one_command")),
    (
        "python3 -m venv",
        There("tests/packages/bare.rs::a_bare_debian_has_endpoints_in_python_after_the_wheel"),
    ),
    ("cargo install", There("tests/packages/bare.rs::the_program_is_installed_from_its_crates")),
    (
        "./x package deb",
        Not("it installs as root; tests/packages/bare.rs does, in a Debian of its own"),
    ),
    ("git clone", Not("it wants the network")),
];

"""The programs of interop/faults.sh: how each is run, what says that it is through, and what it compares.

`{port}` is a TCP port, `{at}` the server's address, `{own}` the side's, `{dir}` a folder of the cell's own, `{on}` and
`{faulty}` run a rank on a device without and with the fault. Kinds: of `tcp` the two exchange their addresses by TCP, of `cm` by
rdma_cm, each at an address of its own; `ranks` is one command that starts both.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

# What the programs that compare data say of wrong ones.
WRONG = (
    r"data mismatch|invalid data in page|: not is\(|: not in\[|data verification failed|Data Error|verify error|"
    r"verify failed|failed to verify|data verify|wrong bytes|Out of bounds values : [1-9]|[1-9]\d* wrong"
)

BYTES = "each byte"
NOTHING = "nothing"


@dataclass
class Program:
    name: str
    package: str
    kind: str
    client: str
    done: str  # what it says when it is through
    server: str = ""
    server_done: str = ""
    compares: str = NOTHING
    bound: int = 10
    env: dict = field(default_factory=dict)
    after: str = ""  # a command that compares what came, once both have ended with 0
    has_timers: bool = False  # of its own, longer than three seconds: it may tell of a fault when all stands still
    serves: bool = False  # its server goes on until it is stopped
    listens: int = 0  # a TCP port that its server listens on as well
    not_done: str = ""  # what it says where it says that it is through, and is not
    ready: str = ""  # what its server says when it can be asked
    wants: list = field(default_factory=list)  # programs that it starts

    @property
    def needs(self):
        return [(self.server or self.client).split()[0], *self.wants]


def perftest(line):
    name = line
    # An acknowledgement may take 0.54 s, eight times: on a busy machine a peer may have no processor for as long.
    line += ("" if "-c U" in line else " -u 17") + " -F -p {port}"
    return Program(
        name=name,
        package="perftest 4.5",
        kind="tcp",
        client=line + " {at}",
        server=line,
        done=r"(?m)^ *[0-9]+ +[0-9]+ +[0-9.]+ ",  # bytes, iterations, numbers
    )


def pingpong(line):
    line += " -c -g 0 -p {port}"
    return Program(
        name=line.replace(" -g 0 -p {port}", ""),
        package="rdma-core 44",
        kind="tcp",
        client=line + " {at}",
        server=line,
        done=r"iters in|iters/QP in",
        server_done=r"iters in",
        compares="a byte of each page of the last message",
    )


def cm(client, done, server="", package="rdma-core 44", **more):
    return Program(
        name=more.pop("name", "") or re.sub(r" (-[sa] )?{at}|{[a-z]+}/| -F\b", "", client),
        package=package,
        kind="cm",
        client=client,
        server=server or client.replace(" -s {at}", ""),
        done=done,
        **more,
    )


def ucx_env(transport):
    """Datagrams of UCX, which wire up RC and DC as well, wait 30 s for a peer by default: longer than a cell has. So
    may the backtrace take that UCX prints when it ends."""
    return {"UCX_TLS": f"{transport},self", "UCX_UD_TIMEOUT": "10s", "UCX_HANDLE_ERRORS": "none"}


def ucx(transport, test):
    return Program(
        name=f"ucx_perftest {transport} {test.split()[0]}",
        package="UCX 1.13.1",
        kind="tcp",
        client=f"ucx_perftest -f -p {{port}} {{at}} -t {test}",
        server="ucx_perftest -f -p {port}",
        done=r"(?m)^ *[0-9]+( +([0-9.]+|inf)){6,}",
        bound=30,
        has_timers=True,
        env=ucx_env(transport),
    )


def ranks(name, package, command, **more):
    return Program(
        name=name,
        package=package,
        kind="ranks",
        client=command,
        done="all as it should be",
        compares=BYTES,
        bound=30,
        has_timers=True,
        **more,
    )


OPEN_MPI = "mpirun.openmpi --allow-run-as-root --oversubscribe"
WORK = "messages collectives messages collectives"


def open_mpi(transport):
    rank = "-n 1 %s {dir}/mpi-openmpi 100000 " + WORK
    return ranks(
        f"Open MPI {transport}",
        "Open MPI 4.1.4, UCX 1.13.1",
        f"{OPEN_MPI} --mca pml ucx {rank % '{on}'} : {rank % '{faulty}'}",
        env=ucx_env(transport),
    )


def mpich(transport):
    rank = "-n 1 %s {dir}/mpi-mpich 100000 " + WORK
    return ranks(
        f"MPICH {transport}",
        "MPICH 4.0.2, UCX 1.13.1",
        f"mpirun.mpich {rank % '{on}'} : {rank % '{faulty}'}",
        env=ucx_env(transport),
    )


OFI = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"

FIO = "fio --name=x --ioengine=rdma --port={port} --bs=64k --size=48m --iodepth=16 --output-format=terse"


def fi_pingpong(line, size=4096):
    line = f"fi_pingpong -p {line} -c -I 2000 -S {size}"
    done = f"{size >> 10}k +2k"
    return cm(
        line + " {at}", done, server=line, server_done=done, listens=47592, package="libfabric 1.17", compares=BYTES
    )


def nccl_net(program):
    """NCCL's net_ib, as interop/nccl_net.sh has built it. Both ranks are told where to meet."""
    rank = f"{program} IB check"
    return ranks(
        "NCCL net_ib",
        f"NCCL {program.parent.name}",
        f"""bash -c "mkdir {{dir}}/meet
            RANK=0 {{on}} {rank} &
            RANK=1 {{faulty}} {rank}
            second=$?
            wait $! && exit $second" """,
        # 67 ms, seven times, before a peer passes for one that is gone; by default 30 s.
        env={"MEET": "{dir}/meet", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "WARN",
             "NCCL_IB_TIMEOUT": "14"},
    )


INTEROP = Path(__file__).resolve().parents[1]


def of_gpus(name, package, run, done, compares, wants, said=""):
    """A script of interop/ that runs two ranks with a GPU each, where the environment has what it wants. `said`: the files
    below its LOG that it keeps their words in."""
    if not all(want in os.environ for want in wants):
        return []
    limit, words = "", "&"
    if said:
        limit, words = "LIMIT=150", f">/dev/null & tail --pid=$! -s 0.1 -qF -n +1 {said} 2>/dev/null"
    return [Program(
        name=name,
        package=package,
        kind="ranks",
        client=f"""bash -c "set -- {{on}}
            export BELLPUSH=$1 OPTIONS=--verbose {limit} LOG={{dir}}/log LAST='{{faulty}}'
            {INTEROP}/{run} {words}
            wait $!" """,
        done=done,
        compares=compares,
        bound=40,
        has_timers=True,
    )]


OF_GPUS = [
    *of_gpus(
        "all_reduce_perf",
        "NCCL with GPUs",
        "nccl.sh pair NCCL_IB_TIMEOUT=14 -- all_reduce_perf -b 256K -e 256K -n 200 -w 5 -c 1",
        "Out of bounds values : 0 OK",
        BYTES,
        ["NCCL_TESTS", "NCCL_HOME", "MPI_HOME"],
        "{dir}/log/all_reduce_perf-pair.out {dir}/log/all_reduce_perf-pair.err",
    ),
    *of_gpus(
        "all_reduce_perf, GPUDirect",
        "NCCL with GPUs",
        "nccl.sh gpu NCCL_IB_TIMEOUT=14 -- all_reduce_perf -b 64K -e 64K -n 100 -w 5 -c 1",
        "Out of bounds values : 0 OK",
        BYTES,
        ["NCCL_TESTS", "NCCL_HOME", "MPI_HOME"],
        "{dir}/log/all_reduce_perf-gpu.out {dir}/log/all_reduce_perf-gpu.err",
    ),
    *of_gpus("nvshmem.cu", "NVSHMEM", "nvshmem.sh", "(?s)PASSED.*PASSED", BYTES, ["NVSHMEM", "PROGRAM"]),
    *of_gpus("nvshmem.cu, kernels ring", "NVSHMEM", "nvshmem.sh NVSHMEM_IBGDA_NIC_HANDLER=gpu", "(?s)PASSED.*PASSED",
             BYTES, ["NVSHMEM", "PROGRAM"]),
    *of_gpus(
        "test_low_latency.py",
        "DeepEP",
        "deepep.sh",
        "(?s)Combine send/recv time.*Combine send/recv time",
        BYTES,
        ["DEEPEP"],
        "{dir}/log/rank0.out {dir}/log/rank1.out",
    ),
]

PROGRAMS = [
    perftest("ib_write_bw -s 65536 -n 1500"),
    perftest("ib_write_lat -n 2000"),
    perftest("ib_send_bw -e -s 65536 -n 3000"),
    # No more messages than receives, nor than the receiving socket holds while its process has no core (8 MiB where
    # net.core.rmem_max is 4): more may be lost without a fault.
    perftest("ib_send_bw -c UC -Q 20 -r 1000 -n 1000 -s 4096"),
    perftest("ib_send_bw -c UD -r 5000 -n 5000 -s 1024"),
    perftest("ib_read_bw -s 65536 -n 4000"),
    perftest("ib_atomic_bw -n 20000"),
    pingpong("ibv_rc_pingpong -n 2000"),
    pingpong("ibv_rc_pingpong -e -n 1000"),
    pingpong("ibv_uc_pingpong -n 2000"),
    pingpong("ibv_ud_pingpong -n 2000"),
    cm(
        "rping -c -v -V -C 300 -a {at}",
        "rdma-ping-299",
        server="rping -s -v -V -C 300",
        server_done="rdma-ping-299",
        compares=BYTES,
    ),
    cm("ucmatose -s {at} -C 3000 -S 5000", "return status 0", server_done="return status 0"),
    cm("udaddy -s {at} -C 2000", "return status 0", server_done="return status 0"),
    cm("rstream -s {at} -T v -S 65536 -I 60 -C 4", r"(?m)^custom", compares=BYTES),
    cm("rcopy {dir}/from {at}:{dir}/to", r"bytes in", server="rcopy", serves=True, compares=BYTES,
       after="cmp {dir}/from {dir}/to"),
    cm("qperf -cm1 -t 1 {at} rc_bw", r"bw +=", server="qperf", serves=True, listens=19765, package="qperf 0.4.11",
       bound=25),
    cm(
        FIO + " --rw=write --verb=write --hostname={at}",
        r"(?m)^3;",
        server=FIO + " --rw=read",
        name="fio --ioengine=rdma --verb=write",
        not_done="cq completion status",
        package="fio 3.33",
    ),
    fi_pingpong("verbs -e msg"),
    fi_pingpong("verbs;ofi_rxm -e rdm"),
    ucx("rc_v", "tag_bw -s 65536 -n 1000 -w 100"),
    ucx("rc_x", "tag_bw -s 65536 -n 1000 -w 100"),
    ucx("ud_x", "tag_bw -s 4096 -n 4000 -w 100"),
    ucx("dc_x", "tag_bw -s 65536 -n 1000 -w 100"),
    ucx("rc_x", "ucp_put_bw -s 65536 -n 1000 -w 100"),
    open_mpi("rc_x"),
    open_mpi("ud_x"),
    ranks(
        "Open MPI ofi",
        "Open MPI 4.1.4, libfabric 1.17",
        f"{OPEN_MPI} {OFI} -n 1 {{on}} {{dir}}/mpi-openmpi 100000 {WORK} "
        f": -n 1 {{faulty}} {{dir}}/mpi-openmpi 100000 {WORK}",
    ),
    mpich("rc_x"),
    *map(nccl_net, sorted(Path(__file__).resolve().parents[2].glob("target/nccl-net/*/nccl_net"))[-1:]),
    *OF_GPUS,
]

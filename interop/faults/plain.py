"""Programs that interop/faults.sh runs without a fault alone: other tests of those in its table, and libraries of which
each program has one way to end."""

import shlex

from programs import BYTES, FIO, cm, fi_pingpong


def shell(lines):
    return "bash -c " + shlex.quote(lines.strip())


def qperf(test):
    """Its server's child crashes at each test's end, without a software device as well: it destroys a queue pair that
    its listening identifier does not have. Its client waits until nobody has answered for 9 s."""
    return cm(f"qperf -cm1 -t 1 {{at}} {test}", r"(?m)^ +\w+ += ", server="qperf", serves=True, listens=19765,
              package="qperf 0.4.11", bound=25)


def dapl(line, done, compares="nothing", server_done=""):
    """Each side has a file that says where its device is."""
    of_side = """echo 'ofa u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "{own} 0" ""' >{own}.conf &&
        DAT_OVERRIDE={own}.conf exec """ + line.replace(" ", " -P ofa ", 1)
    return cm(shell(of_side + " -h {at}"), done, server=shell(of_side + " -s"), server_done=server_done or done,
              name=line.strip(), package="dapl 2.1.10", bound=30, compares=compares, wants=[line.split()[0]])


# iSER asks for an initiator's address and its name, iSCSI over TCP for one of them.
TARGET = """
    export TGT_IPC_SOCKET=$PWD/tgtd
    (
        until tgtadm --lld iser --mode target --op new --tid 1 --targetname iqn.2026-01.bellpush:disk 2>&1
        do sleep 0.2
        done
        tgtadm --lld iser --mode logicalunit --op new --tid 1 --lun 1 --backing-store $PWD/from &&
        tgtadm --lld iser --mode target --op bind --tid 1 --initiator-address ALL &&
        tgtadm --lld iser --mode target --op bind --tid 1 --initiator-name iqn.2026-01.bellpush:client &&
        echo has a disk
    ) &
    exec tgtd -f --iscsi portal={own}:3260
"""

INITIATOR = "-i iqn.2026-01.bellpush:client iser://{at}:3260/iqn.2026-01.bellpush:disk/1"


def iser(line, done, compares="nothing"):
    """libiscsi 1.19 takes for zero what it got from malloc (`tx_desc`; 1.20 does not), and crashes: glibc fills it."""
    return cm(f"{line} {INITIATOR}", done, name=f"{line} iser://", server=shell(TARGET), ready="has a disk", serves=True,
              package="tgt 1.0.85, libiscsi 1.19", bound=60, compares=compares, wants=[line.split()[0], "tgtd", "tgtadm"],
              env={"MALLOC_PERTURB_": "255"})


PLAIN = [
    *map(qperf, (
        "rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat "
        "rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add"
    ).split()),
    cm(FIO + " --thread --rw=write --verb=write --hostname={at}", r"(?m)^3;", server=FIO + " --thread --rw=read",
       name="fio --ioengine=rdma --verb=write --thread", not_done="cq completion status", package="fio 3.33"),
    # A datagram is a packet: 1024 bytes where the interface has 1500.
    fi_pingpong("verbs -e dgram", 1024),
    dapl("dtest -B 200 -b 65536", "DAPL Test Complete. PASSED"),
    dapl("dtest -W -D -B 200 -b 65536", "DAPL Test Complete. PASSED", BYTES),
    dapl("dtestx ", "immed/atomic test PASSED"),
    dapl("dtestsrq ", "DAPL RC SRQ Test Complete"),
    dapl("dtestcm -c 10", r"Connections: .*Num=10", server_done="EP free:"),
    iser("iscsi-inq", "Product:VIRTUAL-DISK"),
    # What it verifies it has sent, and the target, which reads it, compares with what it has on its disk.
    iser("iscsi-test-cu --dataloss --test=ALL.Verify10", r"tests +8 +8 +8 +0 ", BYTES),
    iser("iscsi-test-cu --dataloss --test=ALL.WriteVerify10", r"tests +6 +6 +6 +0 "),
]

"""NCCL's collectives from PyTorch, in two processes with a GPU each; every element is compared.

Environment as torchrun has it: RANK or PMI_RANK, WORLD_SIZE or PMI_SIZE, MASTER_ADDR, MASTER_PORT; LARGEST bytes
(64 MiB). Last comes what 8 B and the largest size took. interop/nccl.sh runs it on software devices.
"""

import os
import time

import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0")))
RANKS = int(os.environ.get("WORLD_SIZE", os.environ.get("PMI_SIZE", "1")))
LARGEST = int(os.environ.get("LARGEST", str(64 << 20)))
SIZES = [size for size in (8, 128, 4096, 65536, 1 << 20, (4 << 20) + 8, 64 << 20) if size <= LARGEST]
failures = 0


def values(rank, count, dtype, step):
    """A rank's own, small enough that sums of float32 are exact."""
    at = torch.arange(count, dtype=torch.int64, device="cuda")
    return ((at * 7919 + rank * 104729 + step * 31) % 4093 - 2046).to(dtype)


def check(what, got, want):
    global failures
    wrong = int((got != want).sum())
    if wrong:
        failures += 1
        at = int((got != want).nonzero()[0])
        print(f"rank {RANK}: {what}: {wrong} of {got.numel()} wrong, the first at {at}: {got[at]} for {want[at]}")


def collectives(size, dtype, step):
    count = size // 4
    name = f"{str(dtype)[6:]} of {size} B"
    each = [values(rank, count, dtype, step) for rank in range(RANKS)]
    mine = each[RANK]
    total = sum(each)
    most = torch.stack(each).max(0).values if size <= 1 << 20 else None

    for op, want in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.MAX, most)):
        if want is not None:
            data = mine.clone()
            dist.all_reduce(data, op)
            check(f"all_reduce {op}, {name}", data, want)
    out = torch.zeros(count * RANKS, dtype=dtype, device="cuda")
    dist.all_gather_into_tensor(out, mine)
    check(f"all_gather, {name}", out, torch.cat(each))
    part = count // RANKS
    if part:
        out = torch.zeros(part, dtype=dtype, device="cuda")
        dist.reduce_scatter_tensor(out, mine[: part * RANKS].contiguous())
        check(f"reduce_scatter, {name}", out, total[RANK * part : (RANK + 1) * part])
        out = torch.zeros(part * RANKS, dtype=dtype, device="cuda")
        dist.all_to_all_single(out, mine[: part * RANKS].contiguous())
        check(f"all_to_all, {name}", out, torch.cat([e[RANK * part : (RANK + 1) * part] for e in each]))
    for root in range(RANKS):
        data = mine.clone()
        dist.broadcast(data, root)
        check(f"broadcast from {root}, {name}", data, each[root])
        data = mine.clone()
        dist.reduce(data, root)
        if RANK == root:
            check(f"reduce to {root}, {name}", data, total)
        outs = [torch.zeros_like(mine) for _ in range(RANKS)]
        dist.gather(mine, outs if RANK == root else None, root)
        if RANK == root:
            check(f"gather to {root}, {name}", torch.cat(outs), torch.cat(each))
        out = torch.zeros_like(mine)
        dist.scatter(out, [e + root for e in each] if RANK == root else None, root)
        check(f"scatter from {root}, {name}", out, mine + root)
    after, before = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    out = torch.zeros_like(mine)
    ops = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, out, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    check(f"send and receive, {name}", out, each[before])


def took(size, times):
    """Seconds of an all-reduce."""
    data = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
    for timed in (False, True):
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(times if timed else 2):
            dist.all_reduce(data)
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def main():
    device = RANK % torch.cuda.device_count()
    torch.cuda.set_device(device)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29577")
    dist.init_process_group("nccl", rank=RANK, world_size=RANKS, device_id=torch.device("cuda", device))
    if RANK == 0:
        print(f"PyTorch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}", flush=True)
    step = 0
    for dtype in (torch.int32, torch.float32):
        for size in SIZES:
            step += 1
            collectives(size, dtype, step)
            torch.cuda.synchronize()
            if RANK == 0:
                print(f"{str(dtype)[6:]}, {size} B: {'not all right' if failures else 'all right'}", flush=True)
    small, large = took(8, 200), took(SIZES[-1], 5)
    if RANK == 0:
        rate = SIZES[-1] * 2 * (RANKS - 1) / RANKS / large / 1e9
        print(f"all_reduce: 8 B {small * 1e6:.1f} us, {SIZES[-1]} B {large * 1e3:.2f} ms, {rate:.3f} GB/s bus")
    dist.destroy_process_group()
    if failures:
        raise SystemExit(f"rank {RANK}: {failures} collectives were wrong")
    print(f"rank {RANK}: all as it should be")


main()

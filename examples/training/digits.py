"""Data-parallel training: 1,797 handwritten digits (scikit-learn's copy of UCI's), a small
convolutional network in PyTorch, gradients averaged by bellpush.

    cargo build --release -p bellpush-c
    torchrun --nproc-per-node 2 examples/training/digits.py --device cuda

Every rank takes its share of each batch. Afterwards rank 0 trains the same network alone on the same
batches, and the two curves of the loss are compared: exit status 1 if they differ by more than
rounding does.
"""

import argparse
import json
import os
import pathlib
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "capi"))
import bellpush  # noqa: E402

# The gradients are summed over other groups of samples than in one process, so the curves part by
# rounding, which each step carries on: relative difference allowed at any of them. The network is
# smooth because a kink (ReLU, maximum) turns rounding into another path.
ALLOWED = 2e-3


def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 64, 3), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64 * 9, 128), nn.Tanh(), nn.Linear(128, 10),
    ).to(device)


def train(args, device, images, labels, rank, ranks, average):
    """The loss of each batch; `average` makes the mean over ranks of a tensor, in place."""
    model = network(args.seed, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9)
    order = torch.Generator().manual_seed(args.seed)
    losses = []
    for _ in range(args.epochs):
        shuffled = torch.randperm(len(images), generator=order)
        for start in range(0, len(images) - args.batch + 1, args.batch):
            share = shuffled[start:start + args.batch].tensor_split(ranks)[rank].to(device)
            optimizer.zero_grad()
            # Shares may differ by a sample, so each counts for its own.
            loss = nn.functional.cross_entropy(model(images[share]), labels[share], reduction="sum")
            loss = loss * ranks / args.batch
            loss.backward()
            parameters = list(model.parameters())
            flat = torch.cat([p.grad.flatten() for p in parameters] + [loss.detach().reshape(1)])
            average(flat)
            at = 0
            for p in parameters:
                p.grad.copy_(flat[at:at + p.numel()].view_as(p))
                at += p.numel()
            optimizer.step()
            losses.append(flat[-1].item())
    return losses, model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--path", default="push/inband")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    # The same bits every time, in full f32; cuBLAS wants its variable before it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # makes the context that bellpush shares
    digits = load_digits()
    images = (torch.tensor(digits.images, dtype=torch.float32) / 16).unsqueeze(1).to(device)
    labels = torch.tensor(digits.target).to(device)
    executor = "host" if args.device == "cpu" else "cuda"
    with bellpush.join(executor=executor, path=args.path, timeout_s=60) as comm:
        ours, model = train(args, device, images, labels, comm.rank, comm.ranks,
                            lambda flat: comm.all_reduce(flat, op="mean"))
        comm.synchronize()
        # Everybody has the same parameters, to the bit.
        mine = torch.cat([p.detach().flatten() for p in model.parameters()])
        most, least = mine.clone(), mine.clone()
        comm.all_reduce(most, op="max")
        comm.all_reduce(least, op="min")
        comm.synchronize()
        same = bool((most == least).all())
        if comm.rank != 0:
            return 0
        alone, _ = train(args, device, images, labels, 0, 1, lambda flat: None)
        apart = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, alone))
        with torch.no_grad():
            right = (model(images).argmax(1) == labels).float().mean().item()
        print(f"{comm.ranks} ranks, {args.path} on {args.device}: {len(ours)} steps of "
              f"{mine.numel()} gradients; loss {ours[0]:.4f} to {ours[-1]:.4f} (alone {alone[-1]:.4f}), "
              f"apart by at most {apart:.1e}; {right:.1%} of the digits right; "
              f"parameters {'the same' if same else 'DIFFERENT'} at all ranks")
        if args.json:
            result = {"ranks": comm.ranks, "path": args.path, "device": args.device,
                      "gradients": mine.numel(), "losses": ours, "alone": alone,
                      "apart": apart, "right": right, "same": same}
            pathlib.Path(args.json).write_text(json.dumps(result) + "\n")
        return 0 if same and apart <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())

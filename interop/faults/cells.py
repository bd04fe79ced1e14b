"""Runs each program under each fault script, and says how each ended. interop/faults.sh starts it.

A cell is one pair of processes, or of ranks; each has a bound. What a program did is told from its status, what it
said, and, where it did not end, from what it was at: its processor time, and the kernel's function that it slept in.
"""

import argparse
import contextlib
import fnmatch
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from plain import PLAIN
from programs import PROGRAMS, WRONG

HERE = Path(__file__).resolve().parent
EVERY = PROGRAMS + PLAIN
ADDRESSES = ["10.0.0.1", "10.0.0.2"]  # of interop/faults.sh's own network
# What a program that tells of an error says, of whatever kind.
TELLS = re.compile(
    r"error|fail|fatal|synd|status|abort|unable|couldn|can't|cannot|unexpected|reset|timed out|timeout|mismatch|"
    r"not connected|not so|no data|invalid|event|lost|unreachable|shutdown|refused|signal|unknown",
    re.I,
)
# From the worst on: a cell is what its worse side is.
ORDER = ["corrupts", "crashes", "hangs", "passes off", "slow", "mute", "reports", "recovers"]
STRIKES = "of the script strikes"
# Looks, each half a second long, that find a device as the one before did.
STILL = 6
TICKS = os.sysconf("SC_CLK_TCK")


def children(pid):
    """A process and all that it started, parents first."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [n for child in task.read_text().split() for n in children(int(child))]
        except OSError:
            pass  # it has ended
    return found


def read(path, default=""):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return default


def ticks(pid):
    """Processor time of a process's first thread: the preloaded device has threads of its own."""
    fields = read(f"/proc/{pid}/task/{pid}/stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def listens(port):
    tables = read("/proc/net/tcp") + read("/proc/net/tcp6")
    return any(" 0A " in line and f":{port:04X} " in line.split(" 0A ")[0] for line in tables.splitlines())


def reap():
    """What programs have left behind: this is the first process among its own."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Side:
    """One process that `bellpush run` has started, or one command that starts both ranks."""

    def __init__(self, command, log, env):
        self.log = Path(log)
        self.begin = time.monotonic()
        self.seconds = None
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )

    def ended(self):
        if self.seconds is None and self.process.poll() is not None:
            self.seconds = time.monotonic() - self.begin
        return self.seconds is not None

    def programs(self):
        """Those of its processes that have a device: neither `bellpush` nor what starts ranks."""
        every = children(self.process.pid)
        mine = [pid for pid in every if "libbellpush_shim" in read(f"/proc/{pid}/maps")]
        starters = ("bellpush", "mpirun", "orted", "mpiexec", "hydra", "env")
        return [pid for pid in mine if not read(f"/proc/{pid}/comm").startswith(starters)]

    def what_it_is_at(self):
        """How a side that does not end is: whether its device gets on, and whether it takes processor time."""
        pids = self.programs()
        before = {pid: ticks(pid) for pid in pids}
        reports = [self.device_reports(pids), self.device_reports(pids)]
        words = []
        for pid in pids:
            asleep = read(f"/proc/{pid}/wchan") or "?"
            # On a busy machine one that polls gets little.
            words.append("polls" if ticks(pid) - before[pid] > 0.04 * TICKS else f"sleeps ({asleep})")
        # On a busy machine one may not have answered yet.
        gets_on = all(reports) and reports[0] != reports[1]
        return gets_on, ", ".join(sorted(set(words))) or "ended but for its children"

    def device_reports(self, pids):
        """What the queue pairs of its devices are at, half a second after they were asked."""
        begin = len(self.said())
        for pid in pids:
            caught = re.search(r"(?m)^SigCgt:\s*(\w+)", read(f"/proc/{pid}/status"))
            if caught and int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR2)
        time.sleep(0.5)
        return sorted(re.findall(r"bellpush: \S+: queue pair .*|\S.* CQ .* written.*", self.said()[begin:]))

    def end(self):
        for what, patience in [(signal.SIGTERM, 2), (signal.SIGKILL, 5)]:
            for pid in reversed(children(self.process.pid)):
                try:
                    os.kill(pid, what)
                except ProcessLookupError:
                    pass
            until = time.monotonic() + patience
            while time.monotonic() < until and self.process.poll() is None:
                time.sleep(0.01)

    def said(self):
        return read(self.log)


def message(text):
    """The first line that tells of an error, without the device's own."""
    no_message = r" *bellpush: | *\d+ +/\S+\.so|Test with events|={3,}"
    lines = [line.strip() for line in text.splitlines() if not re.match(no_message, line)]
    return next((re.sub(r"\s+", " ", line)[:160] for line in lines if TELLS.search(line)), "")


def judge(side, text, done):
    """How a side that has ended did."""
    code = side.process.returncode
    # A shell's way to tell of a signal; of the others the number is a program's own.
    killed = -code if code < 0 else code - 128 if code - 128 in (4, 5, 6, 7, 8, 9, 11) else 0
    by_rank = re.search(r"on signal (\d+)|EXIT STRING: .*\(signal (\d+)\)|KILLED BY SIGNAL: (\d+)", text)
    if by_rank and code:
        number = int(next(group for group in by_rank.groups() if group))
        killed = number if number < 65 and number not in (1, 9, 15) else 0
    if re.search(WRONG, text):
        return "corrupts"
    if killed and killed != signal.SIGABRT:
        return "crashes"
    if code == 0:
        return "recovers" if re.search(done, text) else "passes off"
    return "reports" if message(text) else "mute"


class Cell:
    def __init__(self, program, fault, options, folder, port, whole):
        self.whole = whole
        self.program, self.fault, self.options, self.folder = program, fault, options, folder
        self.at = ADDRESSES[0] if program.kind == "cm" else "127.0.0.1"
        self.port = port
        self.is_peers = bool(fault) and fault.stem.startswith("peer-")

    def script(self):
        """The script; one that waits does so for a third of what the program takes without a fault."""
        text = self.fault.read_text()
        if "after = " not in text or not self.whole:
            return str(self.fault)
        copy = self.folder / self.fault.name
        copy.write_text(re.sub(r'after = "\w+"', f'after = "{int(self.whole * 350)}ms"', text))
        return str(copy)

    def device(self, faulty, index):
        words = [self.options.bellpush, "run"]
        if self.program.kind == "cm" or "ofi" in self.program.name:
            words += ["--address", ADDRESSES[index]]
        words += ["--verbose"]
        if faulty:
            if self.options.adversary:
                words += ["--adversary", self.options.adversary]
            if self.fault:
                words += ["--fault", self.script()]
        return words + ["--"]

    def words(self, line, index=0):
        on, faulty = (shlex.join(self.device(is_it, int(is_it))) for is_it in (False, True))
        line = line.replace(";", r"\;")
        values = {"port": self.port, "at": self.at, "dir": self.folder, "on": on, "faulty": faulty}
        values["own"] = ADDRESSES[index]
        return shlex.split(line.format(**values))

    def start(self):
        own = {name: value.format(dir=self.folder) for name, value in self.program.env.items()}
        env = dict(os.environ, **own, TMPDIR=str(self.folder))
        log = lambda name: self.folder / f"{name}.log"
        if self.program.kind == "ranks":
            return {"ranks": Side(self.words(self.program.client), log("ranks"), env)}
        line = ["stdbuf", "-oL", "env", "-C", str(self.folder)]
        server = self.device(self.is_peers, 0) + line + self.words(self.program.server)
        client = self.device(not self.is_peers, 1) + line + self.words(self.program.client, 1)
        sides = {"server": Side(server, log("server"), env)}
        self.wait_for(sides["server"])
        sides["client"] = Side(client, log("client"), env)
        return sides

    def wait_for(self, server):
        """Until a server listens: at a TCP port, or by rdma_cm a moment after it has a device."""
        until = time.monotonic() + 10
        port = self.port if self.program.kind == "tcp" else self.program.listens
        while time.monotonic() < until and not server.ended():
            if self.program.ready:
                if re.search(self.program.ready, server.said()):
                    return
            elif port and listens(port):
                return
            elif not port and "bellpush: mlx5_0: " in server.said():
                time.sleep(0.5)
                return
            time.sleep(0.01)

    def has_struck(self, sides):
        return self.fault and any(STRIKES in side.said() for side in sides.values())

    def run(self):
        sides = self.start()
        bound = self.options.bound or self.program.bound
        until, still, before = time.monotonic() + bound, 0, None
        while time.monotonic() < until and not all([side.ended() for side in sides.values()]):
            if self.program.serves and sides["client"].ended():
                break
            if any(side.ended() for side in sides.values()):
                # Whoever is left has half the time to notice.
                until = min(until, max(side.begin + (side.seconds or 0) for side in sides.values()) + bound / 2)
            if self.has_struck(sides) and not self.program.has_timers:
                now = [side.device_reports(side.programs()) for side in sides.values() if not side.ended()]
                is_quiet = all(" 0 messages" in line or "messages" not in line for side in now for line in side)
                still = still + 1 if now == before and is_quiet else 0
                before = now
                if still == STILL:
                    break  # nothing is on its way, and nothing has happened for a while: nothing will
            time.sleep(0.01)
        if self.program.serves and not sides["server"].ended():
            sides.pop("server").end()
        at = {name: side.what_it_is_at() for name, side in sides.items() if not side.ended()}
        for side in sides.values():
            side.end()
        return self.result(sides, at)

    def result(self, sides, at):
        result = {"program": self.program.name, "fault": self.fault.stem if self.fault else "none", "sides": {}}
        for name, side in sides.items():
            text = side.said()
            done = self.program.server_done if name == "server" else self.program.done
            how = ("slow" if at[name][0] else "hangs") if name in at else judge(side, text, done)
            if how == "recovers" and self.program.not_done and re.search(self.program.not_done, text):
                how = "passes off"
            if name in at and re.search(WRONG, text):
                how = "corrupts"
            seconds = None if name in at else round(side.seconds, 2)
            code = None if name in at else side.process.returncode
            doing = at[name][1] if name in at else None
            said = message(text)
            result["sides"][name] = {"how": how, "code": code, "seconds": seconds, "at": doing, "said": said}
        text = "".join(side.said() for side in sides.values())
        result["struck"] = self.fault is None or STRIKES in text
        result["found"] = text.count("bellpush: adversary:")
        self.mind_the_fault(result)
        self.mind_the_time(result, sides)
        result["how"] = min((side["how"] for side in result["sides"].values()), key=ORDER.index)
        if result["how"] == "recovers" and self.program.after:
            after = subprocess.run(self.words(self.program.after), stdout=subprocess.DEVNULL, check=False)
            if after.returncode:
                result["how"] = result["sides"]["client"]["how"] = "corrupts"
        return result


    def mind_the_time(self, result, sides):
        """Whoever waits for one that gets on, or has said that it is through since, does not hang."""
        hows = {name: side["how"] for name, side in result["sides"].items()}
        for name, how in hows.items():
            done = self.program.server_done if name == "server" else self.program.done
            is_through = bool(done) and re.search(done, sides[name].said())
            if how == "hangs" and ("slow" in hows.values() or is_through):
                result["sides"][name]["how"] = "slow"

    def mind_the_fault(self, result):
        """One that counts completions and compares nothing says that it is through whatever their status."""
        ends = r"wqe-|qp-error|device-fatal|cqe-overrun"
        side = result["sides"].get("client")
        if side and side["how"] == "recovers" and self.program.compares == "nothing":
            if result["struck"] and re.match(ends, result["fault"]):
                side["how"] = "passes off"


def words_of(result, first):
    """A cell of the table: the side with the fault, then what its peer does if that is something else."""
    def of(side):
        how = side["how"]
        if how == "hangs":
            return f"**hangs** ({side['at'].split(' ')[0].strip(',')})"
        if how == "slow":
            return "slow"
        if how in ("corrupts", "crashes", "passes off"):
            return f"**{how}**"
        return how if how == "recovers" else f"{how} {side['seconds']:.1f} s"

    sides = dict(result["sides"])
    if not result["struck"]:
        return "– " + of(sides[first]) if result["how"] != "recovers" else "–"
    text = of(sides.pop(first))
    for name, side in sides.items():
        if side["how"] in ORDER[:4] and side["how"] != result["sides"][first]["how"]:
            text += f"; {name} {of(side)}"
    return text


def first_side(result):
    if "ranks" in result["sides"]:
        return "ranks"
    is_peers = result["fault"].startswith("peer-") and "server" in result["sides"]
    return "server" if is_peers else "client"


def cell_of(results):
    """What the table says of a cell; where it was run several times and ended in several ways, each with how often."""
    counts = {}
    for result in results:
        counts.setdefault(result["how"], []).append(result)
    words = [words_of(some[0], first_side(some[0])) for some in counts.values()]
    if len(counts) == 1:
        return words[0]
    return " / ".join(f"{len(some)}× {text}" for some, text in zip(counts.values(), words))


def counts(results, out):
    """How many cells ended how; of several runs of one the worst counts."""
    cells = {}
    for result in results:
        key = (result["program"], result["fault"])
        cells[key] = min(cells.get(key, result), result, key=lambda some: ORDER.index(some["how"]))
    print("| outcome | cells |\n|---|---|", file=out)
    struck = [cell for cell in cells.values() if cell["struck"] and cell["fault"] != "none"]
    for how in reversed(ORDER):
        print(f"| {how} | {sum(cell['how'] == how for cell in struck)} |", file=out)
    missed = [cell for cell in cells.values() if not cell["struck"]]
    print(f"| not struck | {len(missed)} |", file=out)
    peers = [cell for cell in struck if cell["how"] == "hangs" and cell["sides"][first_side(cell)]["how"] == "reports"]
    print(f"\nOf those that hang, {len(peers)} are peers of a side that reports.", file=out)


def table(results, out):
    """A part for each package, a row for each fault: one with a column for each program would be too wide."""
    faults = sorted({result["fault"] for result in results}, key=lambda name: (name != "none", name))
    for package in dict.fromkeys(program.package for program in EVERY):
        cells = {}
        names = [program.name for program in EVERY if program.package == package]
        for result in results:
            cells.setdefault((result["program"], result["fault"]), []).append(result)
        names = [name for name in names if any(key[0] == name for key in cells)]
        if not names:
            continue
        print(f"\n### {package}\n\n| fault | " + " | ".join(f"`{name}`" for name in names), "|", file=out)
        print("|---" * (len(names) + 1) + "|", file=out)
        compares = {program.name: program.compares for program in EVERY}
        print("| compares | " + " | ".join(compares[name] for name in names) + " |", file=out)
        for fault in faults:
            row = [cell_of(cells[name, fault]) if (name, fault) in cells else "" for name in names]
            print(f"| {fault} | " + " | ".join(row) + " |", file=out)


def wanted(patterns, name):
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def arguments():
    parser = argparse.ArgumentParser(prog="interop/faults.sh", description=__doc__)
    parser.add_argument("-b", dest="bellpush", required=True)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("-p", dest="programs", action="append", help="only programs of this pattern")
    parser.add_argument("-f", dest="faults", action="append", help="only scripts of this pattern; `none`: no fault")
    parser.add_argument("-t", dest="bound", type=float, help="seconds for a cell, instead of the program's own")
    parser.add_argument("-r", dest="rounds", type=int, default=1, help="times each cell is run")
    parser.add_argument("--adversary", help="a seed, with kinds or without")
    parser.add_argument("--expect", help="outcomes, with commas between; a cell that ends otherwise is an error")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def prepare(program, folder, out):
    """A folder of the cell's own, with what programs want to find there."""
    folder.mkdir(parents=True, exist_ok=True)
    for library in re.findall(r"{dir}/mpi-(\w+)", program.client)[:1]:
        built = out / f"mpi-{library}"
        if not built.exists():
            subprocess.run([f"mpicc.{library}", "-O1", "-w", "-o", built, HERE.parent / "mpi.c"], check=True)
        (folder / built.name).symlink_to(built)
    (folder / "from").write_bytes(bytes((i * 7 + (i >> 8)) & 255 for i in range(1 << 16)) * 512)


def missing(program):
    """What a program wants and this machine does not have."""
    wants = program.needs + [f"mpicc.{library}" for library in re.findall(r"{dir}/mpi-(\w+)", program.client)[:1]]
    return [name for name in wants if not shutil.which(name)]


def main():
    options = arguments()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # to write one takes longer than a cell has
    scripts = sorted(HERE.glob("*.toml"))
    faults = [fault for fault in [None, *scripts] if wanted(options.faults, fault.stem if fault else "none")]
    programs = [program for program in EVERY if wanted(options.programs, program.name)]
    if options.list:
        print("\n".join(program.name for program in programs))
        return 0
    results, port, other = 0, 20000, 0
    with open(options.out / "cells.jsonl", "a") as lines:
        for program in programs:
            if without := missing(program):
                print(f"SKIPPED: {program.name}: no {', '.join(without)}", file=sys.stderr, flush=True)
                continue
            whole = None
            for fault in [fault for fault in faults for _ in range(options.rounds)]:
                if fault and program in PLAIN:
                    continue
                if program.kind == "ranks" and fault and fault.stem.startswith("peer-"):
                    continue  # ranks are each other's peers
                port += 1
                name = re.sub(r"[^\w.-]+", "_", f"{program.name}-{fault.stem if fault else 'none'}-{port}")
                folder = options.out / name
                prepare(program, folder, options.out)
                result = Cell(program, fault, options, folder, port, whole).run()
                if not fault:
                    whole = result["sides"][first_side(result)]["seconds"]
                reap()
                for big in ("from", "to"):
                    (folder / big).unlink(missing_ok=True)
                results += 1
                lines.write(json.dumps(result) + "\n")
                lines.flush()
                other += bool(options.expect) and result["how"] not in options.expect.split(",")
                print(f"{program.name}, {result['fault']}: {words_of(result, first_side(result))}", flush=True)
    with open(options.out / "cells.jsonl") as lines, open(options.out / "table.md", "w") as out:
        results_of_all = [json.loads(line) for line in lines]
        counts(results_of_all, out)
        table(results_of_all, out)
    return 1 if other else 0 if results else 77


if __name__ == "__main__":
    sys.exit(main())

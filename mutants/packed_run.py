#!/usr/bin/env python3
"""Runs what `one_build.py` packed: each mutant against the tests that reach it, on any machine, without Rust.

    DIR/run.py SECONDS OUT [--jobs N] [--only NUMBERS]

SECONDS: after those it ends, and the next call goes on where it stopped. OUT: a folder, to which result.json goes
every few seconds; it is also what is gone on from. That is looked for in $WORK (/var/tmp and the pack's name), and, on
another machine, as DIR/result.json.

First each test runs alone, twice, and says which functions with mutants it reaches. A test that fails then, or takes
more than 60 seconds, is left out and named in the result. Then mutants run: in stages, so that all have gone through
the quickest tests before any sees a slow one. A program ends with its first test that fails. Each job has a network
namespace of its own, where one can be made; elsewhere tests that want the same port (--network) wait for each other.
"""
import argparse, contextlib, ctypes, fcntl, heapq, json, os, pathlib, re, select, shutil, socket, struct, subprocess
import sys, threading, time

HERE = pathlib.Path(__file__).resolve().parent
LONGEST = 60  # of a test alone, in seconds
STAGES = [0.3, 1.5, 6, 25]  # seconds of tests; then all that is left
FACTOR, AT_LEAST = 5, 5  # a mutant may take so many times what its tests take without one, and so many seconds more
SAVE = 10
CLONE_NEWNET = 0x40000000
QUIET = {
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    "RUST_BACKTRACE": "0",
}
BEGUN = re.compile(rb"^test (\S+) (?:- should panic )?\.\.\. ", re.M)
FAILED = re.compile(rb"^test (\S+) (?:- should panic )?\.\.\. [^\n]*FAILED", re.M)


def own_network():
    """A namespace with a loopback interface for this thread and what it starts; False where there can be none."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(some, 0x8913, request))[1]  # SIOCGIFFLAGS
        fcntl.ioctl(some, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP
    return True


class Stop(Exception):
    """Time is over."""


class Run:
    def __init__(self, args):
        self.args, self.end = args, time.monotonic() + args.seconds - min(5, args.seconds / 10)
        self.pack = json.loads((HERE / "pack.json").read_text())
        self.work = pathlib.Path(os.environ.get("WORK", f"/var/tmp/{HERE.name}"))
        self.work.mkdir(parents=True, exist_ok=True)
        args.out.mkdir(parents=True, exist_ok=True)
        self.lock, self.queue, self.busy = threading.Lock(), [], 0
        self.network = threading.Lock()
        kept = [file for file in (self.work / "result.json", HERE / "result.json") if file.exists()]
        self.state = json.loads(kept[0].read_text()) if kept else {"tests": {}, "mutants": {}}
        self.state |= {key: self.pack[key] for key in ("names", "dead", "outside")}
        self.networks = set()
        # Tests find files of the tree where the tree was when they were compiled.
        tree = pathlib.Path(self.pack["tree"])
        if not tree.exists():
            tree.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                tree.symlink_to(HERE / "tree")

    def save(self):
        with self.lock:
            text = json.dumps(self.state, separators=(",", ":"))
        for folder in (self.work, self.args.out):
            (folder / ".result.json").write_text(text)
            os.replace(folder / ".result.json", folder / "result.json")

    def start(self, program, tests, environment, limit):
        """Runs tests of a program one after the other; returns what became of it and which test was the last."""
        meet = False in self.networks and any(part in test for test in tests for part in self.pack["network"])
        with self.network if meet else contextlib.nullcontext():
            return self.watch(program, tests, environment, limit)

    def watch(self, program, tests, environment, limit):
        tmp = self.work / f"tmp-{threading.get_ident()}"
        tmp.mkdir(exist_ok=True)
        env = dict(os.environ, TMPDIR=str(tmp), **QUIET, **environment)
        cwd = pathlib.Path(self.pack["tree"]) / self.pack["programs"][program]
        command = [HERE / "bin" / program, "--exact", "--test-threads=1", *tests]
        streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        child = subprocess.Popen(command, cwd=cwd, env=env, process_group=0, **streams)
        said, until = b"", time.monotonic() + limit
        last = lambda: (BEGUN.findall(said) or [b"?"])[-1].decode()
        try:
            while True:
                if time.monotonic() > self.end:
                    raise Stop
                is_over = child.poll() is not None
                # What a test has left running may hold the other end.
                if select.select([child.stdout], [], [], 0 if is_over else 0.2)[0]:
                    more = os.read(child.stdout.fileno(), 65536)
                    said += more
                    if found := FAILED.search(said):
                        return "caught", found[1].decode()
                    if more:
                        continue
                    child.wait(max(0.1, until - time.monotonic()))
                    is_over = True
                if is_over:
                    return ("survived" if child.returncode == 0 else "caught"), last()
                if time.monotonic() > until:
                    return "timeout", last()
        except subprocess.TimeoutExpired:
            return "timeout", last()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            child.wait()
            child.stdout.close()
            shutil.rmtree(tmp, ignore_errors=True)

    def workers(self, does):
        """Has each job take from the queue until it is empty; returns whether it is."""

        def work():
            self.networks.add(own_network())
            while True:
                with self.lock:
                    if not self.queue and not self.busy or time.monotonic() > self.end:
                        return
                    item = heapq.heappop(self.queue) if self.queue else None
                    self.busy += item is not None
                if item is None:  # one that runs may come back
                    time.sleep(0.1)
                    continue
                try:
                    does(*item)
                except Stop:
                    with self.lock:
                        heapq.heappush(self.queue, item)
                finally:
                    with self.lock:
                        self.busy -= 1

        threads = [threading.Thread(target=work) for _ in range(self.args.jobs)]
        for thread in threads:
            thread.start()
        saved = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            if time.monotonic() - saved > SAVE:
                self.save()
                saved = time.monotonic()
        return not self.queue

    def alone(self, turn, program, test):
        """A test alone, without a mutant."""
        reached = self.work / f"reached-{threading.get_ident()}"
        reached.unlink(missing_ok=True)
        begin = time.monotonic()
        what, _ = self.start(program, [test], {"MUTANTS_REACHED": str(reached)}, LONGEST)
        seconds = time.monotonic() - begin
        some = {n for (n,) in struct.iter_unpack("<I", reached.read_bytes())} if reached.exists() else set()
        with self.lock:
            known = self.state["tests"].setdefault(program, {}).setdefault(test, {"seconds": 0, "reached": [], "ended": []})
            known["seconds"] = round(max(known["seconds"], seconds), 3)
            known["reached"] = sorted(some.union(known["reached"]))
            known["ended"].append(what)

    def baseline(self):
        for program in self.pack["programs"]:
            command = [HERE / "bin" / program, "--list", "--format", "terse"]
            listed = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
            names = [line[: -len(": test")] for line in listed.stdout.splitlines() if line.endswith(": test")]
            for name in names:
                if not self.pack["filters"] or any(f in name for f in self.pack["filters"]):
                    ended = self.state["tests"].get(program, {}).get(name, {"ended": []})["ended"]
                    self.queue += [(turn, program, name) for turn in range(len(ended), 2)]
        heapq.heapify(self.queue)
        return self.workers(self.alone)

    def plan(self):
        """For each mutant its stages: lists of programs with tests and the time that these take."""
        reach = {}
        for program, tests in self.state["tests"].items():
            for name, test in tests.items():
                if test["ended"] == ["survived", "survived"]:
                    for function in test["reached"]:
                        reach.setdefault(function, []).append((test["seconds"], program, name))
        for tests in reach.values():
            tests.sort()
        plans = {}
        for number, function in self.pack["functions"].items():
            stages, sum_of = [{}], 0
            for seconds, program, name in reach.get(function, []):
                if stages[-1] and len(stages) <= len(STAGES) and sum_of + seconds > STAGES[len(stages) - 1]:
                    stages.append({})
                    sum_of = 0
                sum_of += seconds
                time_and_tests = stages[-1].setdefault(program, [0, []])
                time_and_tests[0] += seconds
                time_and_tests[1].append(name)
            plans[int(number)] = stages if stages[0] else []
        return plans

    def mutant(self, stage, number):
        stages = self.plans[number]
        begin, what, by = time.monotonic(), "survived" if stages else "unreached", None
        for program, (seconds, tests) in sorted(stages[stage].items(), key=lambda p: p[1][0]) if stages else ():
            limit = FACTOR * seconds + AT_LEAST
            what, test = self.start(program, tests, {"MUTANT": str(number)}, limit)
            if what != "survived":
                by = f"{program}: {test}"
                break
        with self.lock:
            known = self.state["mutants"].setdefault(str(number), {"seconds": 0})
            known["seconds"] = round(known["seconds"] + time.monotonic() - begin, 2)
            known["stage"], known["of"] = stage + 1, len(stages)
            if what == "survived" and stage + 1 < len(stages):
                known["what"] = "open"
                heapq.heappush(self.queue, (stage + 1, number))
            else:
                known["what"] = what
                if by:
                    known["by"] = by
                if what == "survived":
                    known["tests"] = sum(len(tests) for of in stages for _, tests in of.values())

    def mutants(self):
        self.plans = self.plan()
        only = self.args.only and {int(n) for n in self.args.only.split(",")}
        for number in self.plans:
            if not only or number in only:
                known = self.state["mutants"].get(str(number), {"what": "open", "stage": 0})
                if known["what"] == "open":
                    self.queue.append((known["stage"], number))
        heapq.heapify(self.queue)
        return self.workers(self.mutant)

    def summary(self):
        tests = [(p, name, t) for p, of in self.state["tests"].items() for name, t in of.items()]
        used = [t for _, _, t in tests if t["ended"] == ["survived", "survived"]]
        print(f"{len(tests)} tests, {sum(t['seconds'] for t in used):.0f} s; networks of their own: {self.networks}")
        for program, name, test in tests:
            if len(test["ended"]) == 2 and test not in used:
                print(f"left out: {program} {name}: {', '.join(test['ended'])}")
        counts = {}
        for known in self.state["mutants"].values():
            counts[known["what"]] = counts.get(known["what"], 0) + 1
        print(f"of {len(self.pack['functions'])} mutants:", ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("seconds", type=int)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", help="numbers, with commas between them")
    run = Run(parser.parse_args())
    done = run.baseline() and run.mutants()
    run.save()
    run.summary()
    print("done" if done else "to be gone on with")
    sys.exit(0 if done else 3)


main()

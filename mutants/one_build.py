#!/usr/bin/env python3
"""Runs cargo-mutants' mutants of a crate from one build: the variable MUTANT chooses one at run time.

    cargo install cargo-mutants --locked
    mutants/one_build.py crates/wire bellpush-wire [-f FILE]... [--only NUMBERS] -- --lib [TEST FILTER...]

cargo-mutants compiles a mutant in seconds, this runs it in a tenth of one. The body of each function becomes a match:
an arm for each mutant of it, and its own body for any other number. Mutants that do not compile beside the others are
found by the compiler's errors and left out, as are those outside of functions: `cargo mutants --re` has them. Builds lie
in target/one-build. Results go to target/one-build/PACKAGE.json, survivors to the output.
"""
import argparse, collections, contextlib, json, os, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "target/one-build"
SECONDS = 30  # of one run
ROUNDS = 60  # of compiling
FEATURES = "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n"
# A function that is const has to stay so: what the compiler evaluates sees no mutant.
CHOICE = """
#[doc(hidden)] #[allow(missing_docs)] pub mod mutant_ {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
    const fn none() -> u32 { 0 }
    fn read() -> u32 {
        let chosen = CHOSEN.load(Relaxed);
        if chosen != u32::MAX { return chosen }
        let chosen = std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        CHOSEN.store(chosen, Relaxed);
        chosen
    }
    #[inline] pub const fn chosen() -> u32 { core::intrinsics::const_eval_select((), none, read) }
}
"""
RAW = re.compile(r'b?r(#*)"')
CHAR = re.compile(r"'(\\.[^']*|[^\\'])'")
FN = re.compile(r"\bfn\b")


def behind(src, at):
    """Where a comment, a string or a character that begins at `at` ends; else `at`."""
    if src.startswith("//", at):
        return src.find("\n", at) % (len(src) + 1)
    if src.startswith("/*", at):
        return src.index("*/", at) + 2
    if (raw := RAW.match(src, at)) and not (src[at - 1].isalnum() or src[at - 1] == "_"):
        return src.index('"' + raw[1], raw.end()) + 1 + len(raw[1])
    if src[at] == '"':
        at += 1
        while src[at] != '"':
            at += 2 if src[at] == "\\" else 1
        return at + 1
    char = CHAR.match(src, at)
    return char.end() if char else at


def body(src, at):
    """Where the body of the function whose documentation or attributes begin at `at` begins."""
    depth, seen = 0, False
    while True:
        if (end := behind(src, at)) != at:
            at = end
            continue
        seen |= bool(FN.match(src, at))
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(src[at], 0)
        if src[at] == "{" and depth == 0 and seen:
            return at
        at += 1


def rewritten(src, mutants, out):
    """The file with all of its mutants; the lines of each go to `out`, and those that have no place to `out[None]`."""
    starts = [0]
    for line in src.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    place = lambda p: starts[p["line"] - 1] + p["column"] - 1
    span = lambda s: (place(s["start"]), place(s["end"]))
    spans = {span(m["function"]["span"]) for _, m in mutants if m["function"]}
    outer = sorted(s for s in spans if not any(t != s and t[0] <= s[0] and s[1] <= t[1] for t in spans))
    text, last = "", 0
    for start, end in outer:
        begin = body(src, start)
        text += src[last:begin] + "{ match crate::mutant_::chosen() {\n"
        for number, mutant in mutants:
            first, behind_it = span(mutant["span"])
            if begin < first and behind_it < end:
                line = text.count("\n") + 1
                arm = src[begin:first] + " " + mutant["replacement"] + " " + src[behind_it:end]
                text += f"{number} => {arm}\n"
                out[number] = (line, text.count("\n"))
        text += "_ => " + src[begin:end] + " } }"
        last = end
    out[None] = [number for number, _ in mutants if number not in out]
    return text + src[last:]


def generate(tree, crate, mutants, dead):
    """Writes the crate's files; returns where each mutant is, and those that have no place."""
    where, outside, lib = {}, [], f"{crate}/src/lib.rs"
    files = {lib: []}
    for number, mutant in enumerate(mutants, 1):
        if number not in dead:
            files.setdefault(mutant["file"], []).append((number, mutant))
    for file, of_it in files.items():
        lines = {}
        text = rewritten((ROOT / file).read_text(), of_it, lines)
        outside += lines.pop(None)
        more = FEATURES.count("\n") if file == lib else 0
        where[file] = {number: (a + more, z + more) for number, (a, z) in lines.items()}
        (tree / file).write_text(FEATURES + text + CHOICE if file == lib else text)
    return where, outside


def culprits(message, where):
    """Mutants that an error of the compiler is about."""
    for primary in (True, False):
        hit = set()
        for span in message["spans"]:
            while span.get("expansion") and span["file_name"] not in where:
                span = span["expansion"]["span"]
            if span["is_primary"] == primary or hit:
                lines = where.get(span["file_name"], {})
                hit |= {n for n, (a, z) in lines.items() if a <= span["line_start"] <= z}
        if hit:
            return hit
    return set()


def build(args, mutants):
    """The test program with all mutants that compile; the others; those that have no place."""
    tree, dead = WORK / "tree", set()
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "x", "-C", tree], input=archive, check=True)
    env = dict(os.environ, RUSTC_BOOTSTRAP="1", CARGO_TARGET_DIR=str(WORK / "target"))
    command = ["cargo", "test", "--no-run", "--message-format=json", "-p", args.package, *args.cargo]
    for _ in range(ROUNDS):
        where, outside = generate(tree, args.crate, mutants, dead)
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode == 0:
            programs = [m["executable"] for m in said if m.get("executable") and m["profile"]["test"]]
            return programs[-1], dead, outside
        errors = [m["message"] for m in said if m["reason"] == "compiler-message"]
        new = set().union(*(culprits(e, where) for e in errors if e["level"] == "error"))
        if not new:
            sys.exit(done.stderr)
        dead |= new
        print(f"{len(dead)} do not compile", file=sys.stderr)
    sys.exit("too many rounds")


def run(program, cwd, number, tests):
    """What became of a mutant."""
    quiet = {"PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1", "PROPTEST_MAX_SHRINK_ITERS": "0", "RUST_BACKTRACE": "0"}
    env = dict(os.environ, MUTANT=str(number), **quiet)
    streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child = subprocess.Popen([program, *tests], cwd=cwd, env=env, start_new_session=True, **streams)
    try:
        return "survived" if child.wait(SECONDS) == 0 else "caught"
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:  # also when this program is told to end, and for what a test has left running
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.wait()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("crate")
    parser.add_argument("package")
    parser.add_argument("-f", dest="files", action="append", default=[])
    parser.add_argument("--only", help="numbers, with commas between them")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, rest = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    # Cargo's arguments begin with a dash or follow one that takes a value; what remains are names of tests.
    args.cargo = [a for i, a in enumerate(rest) if a[0] == "-" or i and rest[i - 1] in ("--features", "--test")]
    tests = [a for a in rest if a not in args.cargo]
    command = ["cargo", "mutants", "--no-config", "--list", "--json", "-p", args.package]
    command += [part for file in args.files for part in ("-f", file)]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    mutants = [m for m in json.loads(listed) if not m["file"].endswith("tests.rs")]
    program, dead, outside = build(args, mutants)
    cwd = WORK / "tree" / args.crate
    if (what := run(program, cwd, 0, tests)) != "survived":
        sys.exit(f"without a mutant the tests end with: {what}")
    wanted = {int(n) for n in args.only.split(",")} if args.only else set(range(1, len(mutants) + 1))
    results = {n: run(program, cwd, n, tests) for n in sorted(wanted - dead - set(outside))}
    (WORK / f"{args.package}.json").write_text(json.dumps(results))
    for number, what in results.items():
        if what == "survived":
            print(number, mutants[number - 1]["name"])
    print(len(mutants), "mutants;", len(dead), "do not compile;", len(outside), "outside of functions;", end=" ")
    print(", ".join(f"{count} {what}" for what, count in sorted(collections.Counter(results.values()).items())))


main()

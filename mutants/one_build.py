#!/usr/bin/env python3
"""Runs cargo-mutants' mutants of a crate from one build: the variable MUTANT chooses one at run time.

    cargo install cargo-mutants --locked
    mutants/one_build.py crates/wire bellpush-wire [-f FILE]... [--only NUMBERS] -- --lib [TEST FILTER...]

cargo-mutants compiles a mutant in seconds, this runs it in a tenth of one. The body of each function becomes a match:
an arm for each mutant of it, and its own body for any other number. Mutants that do not compile beside the others are
found by the compiler's errors and left out, as are those outside of functions: `cargo mutants --re` has them. Builds lie
in target/one-build. Survivors go to the output.

Tests of other packages, which are linked with the mutated crate, come by --also:

    mutants/one_build.py crates/soft-nic bellpush-soft-nic --also 'bellpush --test soft_nic --test roce' -- --lib

To build here and run elsewhere: --pack DIR writes the test programs, the files of the tree that are named by --data,
and a run.py (`packed_run.py`) that wants nothing but Python; without it the pack is target/one-build/PACKAGE and is run
at once. Its result.json, wherever it was run, is read by

    mutants/one_build.py --report RESULT.json
"""
import argparse, collections, json, os, pathlib, re, shlex, shutil, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "target/one-build"
ROUNDS = 60  # of compiling
FEATURES = "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n"
# A function that is const has to stay so: what the compiler evaluates sees no mutant. Functions that are reached are
# numbers of four bytes in the file that MUTANTS_REACHED names.
CHOICE = """
#[doc(hidden)] #[allow(missing_docs)] pub mod mutant_ {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
    const UNREAD: u32 = u32::MAX;
    const RECORDS: u32 = u32::MAX - 1;
    static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);
    static REACHED: [AtomicBool; FUNCTIONS] = [const { AtomicBool::new(false) }; FUNCTIONS];
    const fn none(_: usize) -> u32 { 0 }
    fn read(function: usize) -> u32 {
        let chosen = CHOSEN.load(Relaxed);
        if chosen < RECORDS { return chosen }
        if chosen == RECORDS { return record(function) }
        let chosen = std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let records = std::env::var_os("MUTANTS_REACHED").is_some();
        CHOSEN.store(if records { RECORDS } else { chosen }, Relaxed);
        read(function)
    }
    #[cold] fn record(function: usize) -> u32 {
        if REACHED[function].load(Relaxed) || REACHED[function].swap(true, Relaxed) { return 0 }
        if let Some(name) = std::env::var_os("MUTANTS_REACHED") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(name);
            file.and_then(|mut file| std::io::Write::write_all(&mut file, &(function as u32).to_le_bytes())).unwrap();
        }
        0
    }
    #[inline] pub const fn chosen(function: usize) -> u32 { core::intrinsics::const_eval_select((function,), none, read) }
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


def rewritten(src, mutants, out, functions, count):
    """The file with all of its mutants; the lines of each go to `out`, and those that have no place to `out[None]`. The
    function of each goes to `functions`, as a number; before these there were `count`, and how many then is told too."""
    starts = [0]
    for line in src.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    place = lambda p: starts[p["line"] - 1] + p["column"] - 1
    span = lambda s: (place(s["start"]), place(s["end"]))
    spans = {span(m["function"]["span"]) for _, m in mutants if m["function"]}
    outer = sorted(s for s in spans if not any(t != s and t[0] <= s[0] and s[1] <= t[1] for t in spans))
    text, last = "", 0
    for function, (start, end) in enumerate(outer, count):
        begin = body(src, start)
        text += src[last:begin] + f"{{ match crate::mutant_::chosen({function}) {{\n"
        for number, mutant in mutants:
            first, behind_it = span(mutant["span"])
            if begin < first and behind_it < end:
                line = text.count("\n") + 1
                arm = src[begin:first] + " " + mutant["replacement"] + " " + src[behind_it:end]
                text += f"{number} => {arm}\n"
                out[number] = (line, text.count("\n"))
                functions[number] = function
        text += "_ => " + src[begin:end] + " } }"
        last = end
    out[None] = [number for number, _ in mutants if number not in out]
    return text + src[last:], count + len(outer)


def generate(tree, crate, mutants, dead):
    """Writes the crate's files; returns where each mutant is, those that have no place, and the function of each."""
    where, outside, functions, lib = {}, [], {}, f"{crate}/src/lib.rs"
    files, texts, count = {lib: [], **{mutant["file"]: [] for mutant in mutants}}, {}, 0
    for number, mutant in enumerate(mutants, 1):
        if number not in dead:
            files[mutant["file"]].append((number, mutant))
    for file, of_it in files.items():
        lines = {}
        texts[file], count = rewritten((ROOT / file).read_text(), of_it, lines, functions, count)
        outside += lines.pop(None)
        more = FEATURES.count("\n") if file == lib else 0
        where[file] = {number: (a + more, z + more) for number, (a, z) in lines.items()}
    texts[lib] = FEATURES + texts[lib] + CHOICE.replace("FUNCTIONS", str(max(count, 1)))
    for file, text in texts.items():
        (tree / file).write_text(text)
    return where, outside, functions


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
    """The test programs with all mutants that compile: name, file and folder of each; what does not compile; what has
    no place; the function of each mutant."""
    tree, dead = WORK / "tree", set()
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "x", "-C", tree], input=archive, check=True)
    # Nothing looks into these programs, and they may travel.
    slim = {"CARGO_PROFILE_DEV_DEBUG": "false", "CARGO_PROFILE_DEV_STRIP": "symbols"}
    env = {**slim, **os.environ, "RUSTC_BOOTSTRAP": "1", "CARGO_TARGET_DIR": str(WORK / "target")}
    wanted = [[args.package, *args.cargo], *map(shlex.split, args.also)]
    for _ in range(ROUNDS):
        where, outside, functions = generate(tree, args.crate, mutants, dead)
        said, new = [], set()
        for package, *rest in wanted:
            command = ["cargo", "test", "--no-run", "--message-format=json", "-p", package, *rest]
            done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
            said += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode != 0:
                errors = [m["message"] for m in said if m["reason"] == "compiler-message"]
                new = set().union(*(culprits(e, where) for e in errors if e["level"] == "error"))
                if not new:
                    sys.exit(done.stderr)
                break
        if not new:
            made = [m for m in said if m.get("executable") and m["profile"]["test"]]
            folder = lambda m: str(pathlib.Path(m["manifest_path"]).parent.relative_to(tree))
            return [(m["target"]["name"], m["executable"], folder(m)) for m in made], dead, outside, functions
        dead |= new
        print(f"{len(dead)} do not compile", file=sys.stderr)
    sys.exit("too many rounds")


def pack(args, mutants, into):
    """What `packed_run.py` wants."""
    if into.exists() and not (into / "pack.json").exists():
        sys.exit(f"{into} is no pack")
    programs, dead, outside, functions = build(args, mutants)
    shutil.rmtree(into, ignore_errors=True)
    (into / "bin").mkdir(parents=True)
    for name, program, folder in programs:
        shutil.copy(program, into / "bin" / name)
        (into / "tree" / folder).mkdir(parents=True, exist_ok=True)
    for data in args.data:
        (into / "tree" / data).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / data).is_dir() else shutil.copy
        copy(ROOT / data, into / "tree" / data)
    shutil.copy(pathlib.Path(__file__).parent / "packed_run.py", into / "run.py")
    about = {
        "tree": str(WORK / "tree"),
        "programs": {name: folder for name, _, folder in programs},
        "filters": args.filters,
        "network": args.network,
        "functions": functions,
        "names": {number: mutant["name"] for number, mutant in enumerate(mutants, 1)},
        "dead": sorted(dead),
        "outside": sorted(outside),
    }
    (into / "pack.json").write_text(json.dumps(about))


def report(file):
    """Survivors, and how many there are of what."""
    result = json.loads(file.read_text())
    for number, of in sorted(result["mutants"].items(), key=lambda item: int(item[0])):
        if of["what"] in ("survived", "unreached"):
            how = f"of {of['tests']} tests" if "tests" in of else "reached by no test"
            print(number, result["names"][number], f"({how})")
    dead, outside = len(result["dead"]), len(result["outside"])
    print(len(result["names"]), "mutants;", dead, "do not compile;", outside, "outside of functions;", end=" ")
    counts = collections.Counter(of["what"] for of in result["mutants"].values())
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    if "--report" in sys.argv[:2]:
        return report(pathlib.Path(sys.argv[2]))
    parser.add_argument("crate")
    parser.add_argument("package")
    parser.add_argument("-f", dest="files", action="append", default=[])
    parser.add_argument("--only", help="numbers, with commas between them")
    parser.add_argument("--also", action="append", default=[], help="another package and its tests")
    parser.add_argument("--data", action="append", default=[], help="a file or folder that tests read")
    parser.add_argument("--network", action="append", default=[], help="part of the names of tests that want one port")
    parser.add_argument("--pack", type=pathlib.Path)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, rest = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    # Cargo's arguments begin with a dash or follow one that takes a value; what remains are names of tests.
    args.cargo = [a for i, a in enumerate(rest) if a[0] == "-" or i and rest[i - 1] in ("--features", "--test")]
    args.filters = [a for a in rest if a not in args.cargo]
    command = ["cargo", "mutants", "--no-config", "--list", "--json", "-p", args.package]
    command += [part for file in args.files for part in ("-f", file)]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    mutants = [m for m in json.loads(listed) if not m["file"].endswith("tests.rs")]
    into = args.pack or WORK / args.package
    pack(args, mutants, into)
    if not args.pack:
        command = [into / "run.py", "1000000", into, *(["--only", args.only] if args.only else [])]
        subprocess.run(command, env=dict(os.environ, WORK=str(into / "work")), check=True)
        report(into / "result.json")


main()

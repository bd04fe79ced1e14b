//! Compiles the kernels: for the host executor with the C++ compiler, always; for CUDA with nvcc,
//! where the feature `cuda` is on and an nvcc is found. Without one the build succeeds, and opening
//! a CUDA device at run time says why it cannot.
//!
//! nvcc compiles for the GPUs of this machine, or for what `BELLPUSH_CUDA_ARCHS` says (`80,90,90-ptx`: A100,
//! H100 and H200, and what comes after them), or for what `./x setup --cuda` has asked for. Where there is no
//! GPU and nobody asked, no CUDA kernel is compiled: it takes minutes.
//!
//! `BELLPUSH_NVCC` names an nvcc, or is `none`; `CXX` another C++ compiler; `BELLPUSH_WERROR=1`
//! makes warnings errors. An nvcc that comes later is seen by the next run of `./x`, or of this script
//! (`touch build.rs`).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs};

const WATCHED: &[&str] =
    &["BELLPUSH_NVCC", "BELLPUSH_WERROR", "BELLPUSH_CUDA_ARCHS", "CUDA_HOME", "CUDA_PATH"];
/// What nvcc itself looks at, but `NVCC_CCBIN`, which [`fatbin`] gives it.
pub const NVCC_VARIABLES: &[&str] = &["NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];

fn main() {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // In a checkout `kernels` is a link to the folder of that name in the root, where `.tools` is too.
    let kernels = package.join("kernels").canonicalize().expect("the crate has its kernels");
    let root = kernels.parent().expect("a folder of that name").to_owned();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", kernels.display());
    for name in WATCHED.iter().chain(NVCC_VARIABLES) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // For users' own kernels; bellpush's build script hands it on.
    println!("cargo::metadata=include={}", kernels.join("include").display());

    let sources = cu_files(&kernels);
    let werror = env::var_os("BELLPUSH_WERROR").is_some_and(|v| v == "1");
    compile_for_host(&kernels, &sources, &out, werror);

    let (fatbins, why_none) = if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        (Vec::new(), "it was built without the feature `cuda`")
    } else {
        match archs(&root).and_then(|archs| Ok((archs, find_nvcc(&root)?))) {
            Ok((archs, nvcc)) => {
                // Likewise; absent where there is none.
                println!("cargo::metadata=nvcc={}", nvcc.display());
                if nvcc.is_absolute() {
                    println!("cargo::rerun-if-changed={}", nvcc.display()); // another, or none
                }
                (fatbins(&nvcc, &archs, &kernels, &sources, &out, werror), "")
            }
            Err(why) => (Vec::new(), why),
        }
    };
    if !fatbins.is_empty() {
        println!("cargo::rustc-cfg=bellpush_cubin");
    }
    write_table(&out, &sources, &fatbins, why_none);
}

/// The entry points' files, in a fixed order: the library's, and with `bench-kernels` those that measure and test.
fn cu_files(kernels: &Path) -> Vec<PathBuf> {
    let measured = env::var_os("CARGO_FEATURE_BENCH_KERNELS").map(|_| "bench");
    let listed = measured.into_iter().chain(["entry"]).map(|f| fs::read_dir(kernels.join(f)));
    let entries = listed.flat_map(|found| found.expect("the crate has its kernels"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("kernels can be listed").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "cu"))
        .collect();
    files.sort();
    files
}

/// Where `#include` looks: for what is the library's own, and for what users include too.
fn includes(kernels: &Path) -> [PathBuf; 2] {
    [kernels.to_owned(), kernels.join("include")]
}

fn compile_for_host(kernels: &Path, sources: &[PathBuf], out: &Path, werror: bool) {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2) // also in debug builds: lanes spin against each other
        .includes(includes(kernels))
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(werror)
        .flag_if_supported("-fno-exceptions")
        .flag_if_supported("-fno-rtti")
        // A lane's stack ends at guard pages, which no frame may skip.
        .flag_if_supported("-fstack-clash-protection")
        .cpp_link_stdlib(None)
        .file(kernels.join("host/exec.cpp"));
    // What was made of the same sources by the same command stays.
    let mut hasher = DefaultHasher::new();
    for cu in sources {
        // The compiler takes a .cu for CUDA (clang) or for a linker script (gcc); cc puts no `-x`
        // before the file. A one-line source beside the objects says the same.
        let stem = cu.file_stem().expect("a .cu file has a name").to_string_lossy().into_owned();
        let unit = out.join(format!("{stem}.host.cpp"));
        let text = format!("#include \"{}\"\n", cu.display());
        write_if_changed(&unit, &text);
        text.hash(&mut hasher);
        build.file(unit);
    }
    let command = build.get_compiler().to_command();
    format!("{command:?}").hash(&mut hasher);
    let version = command.get_program();
    let version = Command::new(version).arg("--version").output();
    version.map(|v| v.stdout).unwrap_or_default().hash(&mut hasher);
    for file in sources.iter().chain([&kernels.join("host/exec.cpp")]) {
        hash_files(&with_includes(file, &includes(kernels)), &mut hasher);
    }
    let (made, stamp) = (out.join("libbellpush_kernels.a"), out.join("host.stamp"));
    let hash = format!("{:016x}", hasher.finish());
    if made.exists() && fs::read_to_string(&stamp).is_ok_and(|old| old == hash) {
        println!("cargo::rustc-link-lib=static=bellpush_kernels");
        println!("cargo::rustc-link-search=native={}", out.display());
        return;
    }
    let _ = fs::remove_file(&stamp);
    build.compile("bellpush_kernels");
    write_if_changed(&stamp, &hash);
}

/// A file and all that it includes from these folders or, by a name in quotes, from beside it, also under an `#if` that
/// does not hold. A name that is not found is the compiler's own. What a flag or a variable of the compiler's includes is
/// not among them.
pub fn with_includes(file: &Path, folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = vec![file.to_owned()];
    let mut next = 0;
    while let Some(file) = all.get(next).cloned() {
        next += 1;
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        for line in text.lines() {
            let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
            let Some(named) = directive.and_then(|rest| rest.strip_prefix("include")) else {
                continue;
            };
            let named = named.trim_start();
            let opened = named.strip_prefix(['"', '<']);
            let name = opened.and_then(|rest| rest.split(['"', '>']).next());
            let name = name.unwrap_or_else(|| panic!("{}: no file in `{line}`", file.display()));
            let beside = file.parent().filter(|_| named.starts_with('"')).into_iter();
            let places = beside.chain(folders.iter().map(PathBuf::as_path));
            let found = places.map(|folder| folder.join(name)).find(|path| path.is_file());
            let found = found.map(|path| path.canonicalize().unwrap_or(path)); // one name for each
            all.extend(found.filter(|path| !all.contains(path)));
        }
    }
    all
}

/// Names and contents.
fn hash_files(files: &[PathBuf], hasher: &mut DefaultHasher) {
    for path in files {
        (path, fs::read(path).unwrap_or_default()).hash(hasher);
    }
}

/// An nvcc, or why there is none.
fn find_nvcc(root: &Path) -> Result<PathBuf, &'static str> {
    if let Some(named) = env::var_os("BELLPUSH_NVCC") {
        return match named.to_str() {
            Some("none") => Err("BELLPUSH_NVCC was `none` when it was built"),
            _ if runs(Path::new(&named)) => Ok(named.into()),
            _ => panic!("BELLPUSH_NVCC={} does not run", named.to_string_lossy()),
        };
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os);
    let mut candidates: Vec<PathBuf> =
        homes.map(|home| PathBuf::from(home).join("bin/nvcc")).collect();
    candidates.push("nvcc".into());
    // A virtual environment with NVIDIA's wheels.
    if let Ok(pythons) = fs::read_dir(root.join(".tools/cuda/lib")) {
        let found = pythons.flatten().map(|python| python.path());
        candidates.extend(found.map(|p| p.join("site-packages/nvidia/cu13/bin/nvcc")));
    }
    candidates.push("/usr/local/cuda/bin/nvcc".into());
    candidates
        .into_iter()
        .find(|nvcc| runs(nvcc))
        .ok_or("no nvcc was found when it was built (see BELLPUSH_NVCC, CUDA_HOME)")
}

fn runs(nvcc: &Path) -> bool {
    Command::new(nvcc).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// What to compile for, or why nothing.
fn archs(root: &Path) -> Result<String, &'static str> {
    if let Ok(named) = env::var("BELLPUSH_CUDA_ARCHS") {
        return Ok(named);
    }
    let asked = root.join(".tools/cuda.archs");
    if let Ok(named) = fs::read_to_string(&asked) {
        println!("cargo::rerun-if-changed={}", asked.display());
        return Ok(named.trim().to_owned());
    }
    let mut smi = Command::new("nvidia-smi");
    let found = smi.args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    found.ok().filter(|out| out.status.success()).and_then(|out| capabilities(&out.stdout)).ok_or(
        "no GPU of compute capability 8.0 or later was there when it was built \
         (`./x setup --cuda`, or BELLPUSH_CUDA_ARCHS=80,90,90-ptx, compiles for others)",
    )
}

/// `9.0` a line and GPU, as a list of architectures; `None` without one that the kernels run on.
pub fn capabilities(listed: &[u8]) -> Option<String> {
    let number = |line: &str| line.trim().replace('.', "").parse().ok().filter(|&n: &u32| n >= 80);
    let mut numbers: Vec<u32> =
        String::from_utf8_lossy(listed).lines().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let names: Vec<String> = numbers.iter().map(u32::to_string).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// All of them, as many at once as cargo allows jobs.
fn fatbins(
    nvcc: &Path,
    archs: &str,
    kernels: &Path,
    sources: &[PathBuf],
    out: &Path,
    werror: bool,
) -> Vec<PathBuf> {
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(cu) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    fatbin(nvcc, archs, kernels, cu, out, werror);
                }
            });
        }
    });
    sources.iter().map(|cu| compiled(cu, out)).collect()
}

fn compiled(cu: &Path, out: &Path) -> PathBuf {
    out.join(cu.file_name().expect("a .cu file has a name")).with_extension("fatbin")
}

fn fatbin(nvcc: &Path, archs: &str, kernels: &Path, cu: &Path, out: &Path, werror: bool) {
    let to = compiled(cu, out);
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-std=c++17", "-O3", "--threads", "0"]);
    for arch in archs.split(',') {
        let (number, code) = match arch.trim().split_once("-ptx") {
            Some((number, _)) => (number, "compute"),
            None => (arch.trim(), "sm"),
        };
        command.arg("-gencode").arg(format!("arch=compute_{number},code={code}_{number}"));
    }
    if werror {
        command.args(["-Werror", "all-warnings"]);
    }
    if let Some(cxx) = env::var_os("NVCC_CCBIN") {
        command.arg("-ccbin").arg(cxx);
    }
    for folder in includes(kernels) {
        command.arg("-I").arg(folder);
    }
    command.arg(cu);
    let kept = kept_fatbin(&command, nvcc, kernels, cu, out);
    if fs::copy(&kept, &to).is_ok() {
        return;
    }
    let result = command.arg("-o").arg(&to).output();
    let result = result.unwrap_or_else(|e| panic!("{}: {e}", nvcc.display()));
    if !result.status.success() {
        panic!(
            "{command:?} failed (BELLPUSH_NVCC=none builds without CUDA kernels):\n{}{}",
            String::from_utf8_lossy(&result.stdout),
            String::from_utf8_lossy(&result.stderr)
        );
    }
    for line in String::from_utf8_lossy(&result.stderr).lines() {
        println!("cargo::warning={line}");
    }
    keep(&to, &kept);
}

/// Where a compiled file is kept for other builds of the same sources by the same command, whatever changes in files
/// that it does not include. Cargo runs this script once for each profile and set of features (lints, tests, a dependent's), and nvcc takes minutes.
fn kept_fatbin(command: &Command, nvcc: &Path, kernels: &Path, cu: &Path, out: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    format!("{command:?}").hash(&mut hasher);
    let version = Command::new(nvcc).arg("--version").output();
    version.map(|v| v.stdout).unwrap_or_default().hash(&mut hasher);
    for name in NVCC_VARIABLES {
        env::var_os(name).hash(&mut hasher);
    }
    hash_files(&with_includes(cu, &includes(kernels)), &mut hasher);
    let name = cu.file_stem().expect("a .cu file has a name").to_string_lossy();
    // OUT_DIR is target/PROFILE/build/PACKAGE/out.
    let target = out.ancestors().nth(4).unwrap_or(out);
    target.join("bellpush-kernels").join(format!("{name}-{:016x}.fatbin", hasher.finish()))
}

/// Keeps a file for later builds, if it can be; in one step, because another build may look for it now.
fn keep(file: &Path, kept: &Path) {
    let partial = kept.with_extension(std::process::id().to_string());
    let folder = kept.parent().expect("a kept file lies in a folder");
    let copied = fs::create_dir_all(folder).and_then(|()| fs::copy(file, &partial));
    let _ = copied.and_then(|_| fs::rename(&partial, kept));
}

/// Writes `builtin.rs`: the host entry points, which are the lines that begin with `BP_KERNEL(`, and
/// the CUDA images.
fn write_table(out: &Path, sources: &[PathBuf], fatbins: &[PathBuf], why_none: &str) {
    let mut names = Vec::new();
    for cu in sources {
        let text = fs::read_to_string(cu).unwrap_or_else(|e| panic!("{}: {e}", cu.display()));
        for line in text.lines() {
            if let Some((name, _)) =
                line.strip_prefix("BP_KERNEL(").and_then(|rest| rest.split_once(','))
            {
                names.push(name.trim().to_string());
            }
        }
    }
    let images: Vec<String> =
        fatbins.iter().map(|path| format!("include_bytes!({:?})", path.display())).collect();
    let text = format!(
        "const HOST: &[(&str, HostKernel)] = crate::host_kernels! {{ {} }};\n\
         static FATBINS: &[&[u8]] = &[{}];\n\
         #[cfg(feature = \"cuda\")]\n\
         pub(crate) const WHY_NO_FATBINS: &str = {why_none:?};\n",
        names.join(", "),
        images.join(", "),
    );
    write_if_changed(&out.join("builtin.rs"), &text);
}

fn write_if_changed(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

//! The machine of a run, from /proc and /sys.
//!
//! The description does not identify the machine: it has no host name, serial numbers or addresses,
//! and absolute paths of the command line are shortened to their last part. A fact that the system
//! does not give is `unknown` or omitted.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use bellpush::pcie::topology::{Kind, Tree, capture_sysfs, to_toml};

use super::checkout;
use super::row::{Machine, Meta, Nic};

/// Commit of the sources at build time; [`commit`] tells whether the sources matched it.
pub const COMMIT: &str = match option_env!("BELLPUSH_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const UNKNOWN: &str = "unknown";

/// Whether a packaged program's sources were `clean` or `dirty`; `None` of one that was built for use beside them.
const PACKAGED: Option<&str> = option_env!("BELLPUSH_PACKAGED");

/// What a packaged program says of its commit, without a look at a folder of the machine that built it.
fn packaged(commit: &str, sources: Option<&str>) -> Option<String> {
    Some(match sources? {
        "clean" => commit.into(),
        _ => format!("{commit}+dirty"),
    })
}

/// Commit of this program, with `+dirty` where its sources differ from it, and `+unchecked` where
/// its checkout is gone, so that the difference is unknown.
pub fn commit() -> String {
    if COMMIT == UNKNOWN {
        return UNKNOWN.into();
    }
    if let Some(said) = packaged(COMMIT, PACKAGED) {
        return said;
    }
    let program = std::env::current_exe().and_then(|program| program.metadata()?.modified());
    checkout::describe(
        COMMIT,
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")),
        program.ok(),
    )
}

/// The part of [`Meta`] that the system knows. The caller gives NIC and executor. `gpu` is the
/// first NVIDIA GPU that the driver lists, whether or not the run uses it.
pub fn meta(nic: Nic, executor: &str, seed: u64) -> Meta {
    Meta {
        version: VERSION.into(),
        commit: commit(),
        command_line: invocation(),
        date: rfc3339(SystemTime::now()),
        machine: machine(),
        topology: topology(Path::new("/sys")),
        gpu: gpu(),
        driver: driver(&read("/proc/driver/nvidia/version")),
        nic,
        executor: executor.into(),
        seed,
        notes: Vec::new(),
    }
}

/// The command line of this process, with absolute paths shortened to their last part.
pub fn invocation() -> String {
    command_line(std::env::args_os().map(|a| a.to_string_lossy().into_owned()))
}

/// GPUs, NICs and what is above them, as a topology's file; `None` where there is neither.
fn topology(sys: &Path) -> Option<String> {
    let capture = capture_sysfs(sys).ok()?;
    let topology = Tree::new(&capture).topology("the machine of this run", None).ok()?;
    let is_some = [Kind::Gpu, Kind::Nic].iter().any(|kind| !topology.of_kind(*kind).is_empty());
    is_some.then(|| to_toml(&topology))
}

fn machine() -> Machine {
    let cpuinfo = read("/proc/cpuinfo");
    Machine {
        cpu: cpu_model(&cpuinfo),
        cores: u32::try_from(std::thread::available_parallelism().map_or(0, usize::from))
            .unwrap_or(u32::MAX),
        numa_nodes: numa_nodes(Path::new("/sys/devices/system/node")),
        kernel: kernel(&read("/proc/sys/kernel/ostype"), &read("/proc/sys/kernel/osrelease")),
        memory_bytes: memory_bytes(&read("/proc/meminfo")),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first `key : value` line.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (k, v) = line.split_once(':')?;
        (k.trim() == key).then(|| v.trim()).filter(|v| !v.is_empty())
    })
}

fn cpu_model(cpuinfo: &str) -> String {
    // Arm kernels print no model name.
    field(cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).into()
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal").and_then(|v| v.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

fn kernel(ostype: &str, release: &str) -> String {
    match (ostype.trim(), release.trim()) {
        ("", _) | (_, "") => UNKNOWN.into(),
        (name, release) => format!("{name} {release}"),
    }
}

fn numa_nodes(dir: &Path) -> u32 {
    let Ok(entries) = fs::read_dir(dir) else { return 1 };
    let is_node = |name: &str| {
        name.strip_prefix("node").is_some_and(|n| !n.is_empty() && n.parse::<u32>().is_ok())
    };
    let nodes = entries.flatten().filter(|e| e.file_name().to_str().is_some_and(is_node)).count();
    u32::try_from(nodes).unwrap_or(u32::MAX).max(1)
}

fn gpu() -> Option<String> {
    let mut dirs: Vec<_> =
        fs::read_dir("/proc/driver/nvidia/gpus").ok()?.flatten().map(|e| e.path()).collect();
    dirs.sort();
    dirs.iter().find_map(|dir| {
        let text = fs::read_to_string(dir.join("information")).ok()?;
        field(&text, "Model").map(str::to_owned)
    })
}

/// The release number in the driver's banner: the first word of digits and dots only.
fn driver(banner: &str) -> Option<String> {
    let number =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    banner.lines().next()?.split_whitespace().find(number).map(str::to_owned)
}

/// Arguments joined as on a command line, with absolute paths shortened to their last part.
fn command_line(args: impl Iterator<Item = String>) -> String {
    let args: Vec<String> = args
        .map(|arg| {
            let (option, value) = match arg.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (Some(option), value),
                _ => (None, arg.as_str()),
            };
            let value = quoted(shortened(value));
            option.map_or_else(|| value.clone(), |option| format!("{option}={value}"))
        })
        .collect();
    args.join(" ")
}

fn shortened(value: &str) -> &str {
    if !value.starts_with('/') {
        return value;
    }
    Path::new(value).file_name().and_then(|name| name.to_str()).unwrap_or("/")
}

fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.,:+/@%".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        value.into()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}

/// UTC, to the second (RFC 3339).
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to a date of the Gregorian calendar, in eras of 400 years that begin on 1 March, so
    // that the leap day is the last of its year.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_packaged_program_knows_its_sources_by_itself() {
        assert_eq!(packaged("0123", Some("clean")).as_deref(), Some("0123"));
        assert_eq!(packaged("0123", Some("dirty")).as_deref(), Some("0123+dirty"));
        assert_eq!(packaged("0123", None), None);
    }

    #[test]
    fn proc_texts() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core\nflags\t\t: fpu\n";
        assert_eq!(cpu_model(cpuinfo), "AMD EPYC 9654 96-Core");
        assert_eq!(cpu_model("processor : 0\n"), std::env::consts::ARCH);
        assert_eq!(memory_bytes("MemTotal:       131072 kB\nMemFree: 1 kB\n"), 128 << 20);
        assert_eq!(memory_bytes("MemTotal: lots\n"), 0);
        assert_eq!(kernel("Linux\n", "6.8.0-45-generic\n"), "Linux 6.8.0-45-generic");
        assert_eq!(kernel("", ""), "unknown");
        let banner = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC";
        assert_eq!(driver(banner).as_deref(), Some("580.65.06"));
        assert_eq!(driver(""), None);
        assert_eq!(numa_nodes(Path::new("/no/such/place")), 1);
    }

    #[test]
    fn command_lines_keep_no_directories() {
        let line = |args: &[&str]| command_line(args.iter().map(|a| a.to_string()));
        assert_eq!(
            line(&[
                "/home/me/bin/bellpush",
                "bench",
                "--json=/tmp/me/r.json",
                "--sizes",
                "8..4MiB"
            ]),
            "bellpush bench --json=r.json --sizes 8..4MiB"
        );
        assert_eq!(
            line(&["bellpush", "--payload", "my file", ""]),
            "bellpush --payload 'my file' ''"
        );
    }

    #[test]
    fn dates() {
        let date = |s| rfc3339(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(date(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn this_machine_has_no_name() {
        let meta = meta(Nic { name: "soft".into(), software: true }, "host", 1);
        assert!(meta.machine.cores > 0 && !meta.machine.cpu.is_empty());
        let name = read("/proc/sys/kernel/hostname");
        let json = serde_json::to_string(&meta.machine).unwrap();
        assert!(name.trim().len() < 4 || !json.contains(name.trim()));
    }
}

//! The software NIC against Linux's Soft-RoCE (`rdma_rxe`) in a guest: `./x interop`.
//!
//! Boots the guest that `interop/image.sh` makes, in a network namespace of its own, and drives a
//! verbs peer on each side through the same cases: first both in the guest, so that the cases are
//! known to be right, then one on either side. Arguments of `./x interop` are parts of cases' names.

mod errors;
mod failure;
mod guest;
mod packets;
mod peer;
#[path = "../support/preloaded.rs"]
mod preloaded;
mod programs;
mod soft;
mod stock;
mod transfers;

use std::env;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use failure::Failure;
use guest::{GID_IPV4, GID_IPV6, GUEST_IP, GUEST_IP6, Guest, HOST_IP, HOST_IP_BESIDE, HOST_IP6};
use peer::{Peer, RXE, SOFT};
use soft::Served;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/interop");
/// Set by `./x interop`: what is missing is then a failure.
const REQUIRED: &str = "BELLPUSH_INTEROP";
/// Set for the process in the namespace.
const INSIDE: &str = "BELLPUSH_INTEROP_INSIDE";
/// The whole run.
const LIMIT: Duration = Duration::from_secs(480);

fn main() -> ExitCode {
    let filters: Vec<String> = env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    // What the test harness of other tests understands: nothing here is ignored or listed.
    if env::args().any(|a| a == "--ignored" || a == "--list") {
        return ExitCode::SUCCESS;
    }
    if env::var_os(INSIDE).is_some() {
        return run(&filters);
    }
    let required = env::var_os(REQUIRED).is_some();
    if !required && !filters.is_empty() && !filters.iter().any(|part| part == "interop") {
        return ExitCode::SUCCESS; // `cargo test PART` means cases of other tests
    }
    match missing() {
        None => {
            // Before there is a network without others in it.
            LazyLock::force(&preloaded::OBJECT);
            enter()
        }
        Some(what) if required => {
            eprintln!("interop: {what}");
            ExitCode::FAILURE
        }
        Some(what) => {
            println!("interop: skipped: {what}; ./x interop gets what can be had");
            ExitCode::SUCCESS
        }
    }
}

/// What a run needs and this machine lacks.
fn missing() -> Option<String> {
    for file in ["vmlinuz", "initrd"] {
        if !Path::new(FOLDER).join(file).exists() {
            return Some("no guest image (interop/image.sh makes it)".into());
        }
    }
    let quiet = |mut command: Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    let runs = |command: Command| quiet(command).is_ok_and(|status| status.success());
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.arg("--version");
    if !runs(qemu) {
        return Some("no qemu-system-x86_64 (apt-get install qemu-system-x86)".into());
    }
    let mut tap = namespace();
    tap.args(["ip", "tuntap", "add", "tap0", "mode", "tap"]);
    (!runs(tap)).then(|| {
        "no network namespace with a tap (that takes root, or user namespaces and /dev/net/tun)"
            .into()
    })
}

/// `unshare` into a network of our own; with a PID namespace, so that QEMU ends with us, and a mount
/// namespace for the sysfs of this network.
fn namespace() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

fn enter() -> ExitCode {
    let this = env::current_exe().expect("a program has a path");
    let error = namespace().arg(this).args(env::args().skip(1)).env(INSIDE, "1").exec();
    eprintln!("interop: cannot run unshare: {error}");
    ExitCode::FAILURE
}

/// Cases by name, and what became of them.
struct Report {
    filters: Vec<String>,
    passed: u32,
    failed: Vec<String>,
}

impl Report {
    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|part| name.contains(part.as_str()))
    }

    /// Runs a case and prints its line.
    fn case<T: fmt::Display>(&mut self, name: &str, case: impl FnOnce() -> Result<T, Failure>) {
        if !self.wants(name) {
            return;
        }
        let start = Instant::now();
        let outcome = case();
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(what) => {
                self.passed += 1;
                println!("ok      {name:<60} {seconds:6.2} s  {what}");
            }
            Err(e) => {
                println!("FAILED  {name:<60} {seconds:6.2} s\n{e}");
                self.failed.push(name.into());
            }
        }
        let _ = std::io::stdout().flush(); // a reader that left
    }
}

fn run(filters: &[String]) -> ExitCode {
    thread::spawn(|| {
        thread::sleep(LIMIT);
        eprintln!("interop: not done after {LIMIT:?}: stopped");
        std::process::exit(1);
    });
    let mut report = Report { filters: filters.to_vec(), passed: 0, failed: Vec::new() };
    let start = Instant::now();
    let guest = match Guest::boot(FOLDER) {
        Ok(guest) => guest,
        Err(e) => {
            eprintln!("interop: {e}");
            return ExitCode::FAILURE;
        }
    };
    println!("guest up after {:.1} s", start.elapsed().as_secs_f64());
    all(&mut report, &guest);
    println!(
        "{} passed, {} failed, {:.0} s",
        report.passed,
        report.failed.len(),
        start.elapsed().as_secs_f64()
    );
    if report.failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("the guest's console:\n{}", guest.console());
    ExitCode::FAILURE
}

/// An end that cases can be run on.
struct End {
    name: &'static str,
    at: SocketAddr,
}

impl End {
    fn open(&self) -> Result<Peer, Failure> {
        Peer::open(self.name, self.at)
    }
}

/// An address family: the guest's GID and the addresses of both ends of the tap.
struct Family {
    name: &'static str,
    gid: u32,
    host: IpAddr,
    guest: IpAddr,
    /// Where the guest's verbs peer listens.
    port: u16,
}

/// Where ours listens.
const SOFT_PORT: u16 = 4100;

fn all(report: &mut Report, guest: &Guest) {
    report.case("guest", || guest.run("uname -r; rdma link", Duration::from_secs(10)).map(oneline));
    let ipv4 = Family {
        name: "IPv4",
        gid: GID_IPV4,
        host: HOST_IP.into(),
        guest: GUEST_IP.into(),
        port: 4000,
    };
    let ipv6 = Family {
        name: "IPv6",
        gid: GID_IPV6,
        host: HOST_IP6.into(),
        guest: GUEST_IP6.into(),
        port: 4001,
    };
    // It takes long, and does nothing for most of it.
    let beside = "IPv4 rdma_cm: qperf -cm1 rc_lat";
    let beside = format!("{beside} {RXE} -> {SOFT}, beside the others");
    let measuring = (report.wants(&beside) && preloaded::there("qperf"))
        .then(|| programs::Measuring::begin(guest, "rc_lat", HOST_IP_BESIDE.into()));
    for family in [ipv4, ipv6] {
        if let Err(e) = of_family(report, guest, &family) {
            println!("FAILED  {}\n{e}", family.name);
            report.failed.push(family.name.into());
        }
    }
    if let Some(measuring) = measuring {
        report.case(&beside, || measuring?.end());
    }
}

fn of_family(report: &mut Report, guest: &Guest, family: &Family) -> Result<(), Failure> {
    let Family { name, gid, host, port, .. } = *family;
    let rxe = End { name: RXE, at: SocketAddr::new(IpAddr::V4(GUEST_IP), port) };
    let _served = guest.start(&format!("exec verbs_peer rxe0 {gid} {port}"))?;
    for (case_name, case) in packets::CASES {
        report.case(&format!("{name} packets: {case_name}"), || {
            case(&mut rxe.open()?, host, family.guest)?;
            Ok("")
        });
    }
    pair(report, name, &rxe, &rxe);
    let served = Served::start("verbs", host, SOFT_PORT, &["--clients", "0"])?;
    let soft = End { name: SOFT, at: served.at() };
    for (from, to) in [(&rxe, &soft), (&soft, &rxe), (&soft, &soft)] {
        pair(report, name, from, to);
    }
    drop(served); // its address is free again
    lossy(report, guest, family, &rxe)?;
    both_ways(report, guest, family);
    report.case(&format!("{name} capture of a pingpong"), || {
        stock::captured(guest, gid, host, &Path::new(FOLDER).join("pingpong.pcap"))
    });
    for case in stock::CASES {
        let (program, arguments, _) = case;
        if arguments.contains("-a") && host.is_ipv6() {
            continue; // they take long; once is enough
        }
        report.case(&format!("{name} stock {program} {arguments} -> {SOFT}"), || {
            stock::run(guest, *case, gid, host)
        });
    }
    Ok(())
}

/// Programs on both sides, of which either asks.
fn both_ways(report: &mut Report, guest: &Guest, family: &Family) {
    let Family { name, host, guest: at, .. } = *family;
    let to_soft = format!("{RXE} -> {SOFT}");
    let to_rxe = format!("{SOFT} -> {RXE}");
    for program in programs::CASES {
        if host.is_ipv6() && !program.server.starts_with("rping") {
            continue; // of the others, servers are at IPv4's addresses
        }
        let case = format!("{name} {}: {}", program.by, program.name);
        report.case(&format!("{case} {to_soft}"), || program.asked(guest, host));
        report.case(&format!("{case} {to_rxe}"), || program.asking(guest, host, at));
    }
    report
        .case(&format!("{name} rdma_cm: nobody listens {to_rxe}"), || programs::rejected(host, at));
    if host.is_ipv6() {
        return;
    }
    report.case(&format!("{name} rdma_cm: rcopy {to_soft}"), || programs::copied(guest, host));
    report.case(&format!("{name} rdma_cm: rcopy {to_rxe}"), || {
        programs::copied_there(guest, host, at)
    });
    for test in programs::QPERF {
        report.case(&format!("{name} rdma_cm: qperf -cm1 {test} {to_rxe}"), || {
            programs::measured(guest, test, host, at)
        });
    }
}

/// RC over a link on which each side's packets are lost, doubled and reordered: ours by the link,
/// the guest's by its kernel's netem.
fn lossy(report: &mut Report, guest: &Guest, family: &Family, rxe: &End) -> Result<(), Failure> {
    // By its path: the guest's shell takes busybox's own tc otherwise, which has no netem.
    let netem =
        "/sbin/tc qdisc add dev eth0 root netem delay 1ms loss 1% duplicate 0.5% reorder 99.5%";
    let faults = "loss=1%,dup=0.5%,reorder=0.5%,seed=7";
    let seconds = Duration::from_secs(10);
    guest.run(netem, seconds)?;
    let served =
        Served::start("verbs", family.host, SOFT_PORT, &["--clients", "0", "--link", faults])?;
    let soft = End { name: SOFT, at: served.at() };
    for (from, to) in [(rxe, &soft), (&soft, rxe)] {
        for mtu in [1024, 4096] {
            let name = format!("{} {} -> {} rc mtu {mtu} lossy", family.name, from.name, to.name);
            report.case(&name, || transfer(from, to, transfers::rc_lossy, mtu));
        }
    }
    // Both sides must have been hurt, or nothing was shown.
    report.case(&format!("{} both sides' packets were lost", family.name), || {
        let dropped = number(&guest.run("/sbin/tc -s qdisc show dev eth0", seconds)?, "dropped");
        let counters = "grep . /sys/class/infiniband/rxe0/ports/1/hw_counters/*";
        let missed = number(&guest.run(counters, seconds)?, "out_of_seq_request:");
        match (dropped, missed) {
            (Some(dropped @ 1..), Some(missed @ 1..)) => {
                Ok(format!("{dropped} of the guest's dropped, {missed} gaps found by rxe"))
            }
            found => Err(Failure::Wrong {
                what: "the number of packets lost".into(),
                is: format!("{found:?}"),
                want: "some on either side".into(),
            }),
        }
    });
    guest.run("/sbin/tc qdisc del dev eth0 root", seconds).map(|_| ())
}

type Transfers = fn(&mut Peer, &mut Peer, u64) -> Result<u32, Failure>;

fn transfer(from: &End, to: &End, transfers: Transfers, mtu: u64) -> Result<String, Failure> {
    let done = transfers(&mut from.open()?, &mut to.open()?, mtu)?;
    Ok(format!("{done} messages"))
}

/// Every case from one end to the other.
fn pair(report: &mut Report, family: &str, from: &End, to: &End) {
    let label = format!("{family} {} -> {}", from.name, to.name);
    let services: [(&str, Transfers); 3] =
        [("rc", transfers::rc), ("uc", transfers::uc), ("ud", transfers::ud)];
    for (service, transfers) in services {
        for mtu in transfers::MTUS {
            let name = format!("{label} {service} mtu {mtu}");
            report.case(&name, || transfer(from, to, transfers, mtu));
        }
    }
    for (name, case) in errors::CASES {
        report.case(&format!("{label} {name}"), || {
            case(&mut from.open()?, &mut to.open()?)?;
            Ok("")
        });
    }
}

/// The number behind a word, with or without a space.
fn number(text: &str, word: &str) -> Option<u64> {
    let behind = text.split_once(word)?.1.trim_start();
    behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn oneline(text: String) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

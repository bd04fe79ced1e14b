//! Programs that run on both sides, unmodified: in the guest on Soft-RoCE and its kernel's connection
//! manager, and here on the preloaded device and ours. Either side serves.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::FOLDER;
use crate::failure::{Failure, expect};
use crate::guest::{Guest, GuestCommand};
use crate::preloaded::{Ended, LISTEN, Running, there, wait_for};
use crate::stock::UNEVEN_CLOCK;

const TIMEOUT: Duration = Duration::from_secs(40);

/// How often a case is tried.
const TRIES: u32 = 8;

/// A case: the server, and the client, which has SERVER for the server's address.
#[derive(Clone, Copy)]
pub struct Program {
    /// How the two find each other.
    pub by: &'static str,
    pub name: &'static str,
    pub server: &'static str,
    pub client: &'static str,
    /// What a client says that is through.
    pub says: &'static str,
    /// How many messages of a client's to connection managers come late.
    pub late: u32,
}

const fn cm(server: &'static str, client: &'static str, says: &'static str) -> Program {
    Program { by: "rdma_cm", name: client, server, client, says, late: 0 }
}

macro_rules! perftest {
    ($by:literal, $line:literal, $late:expr) => {
        Program {
            by: $by,
            name: $line,
            server: $line,
            client: concat!($line, " SERVER"),
            says: "#bytes",
            late: $late,
        }
    };
}

macro_rules! fio_line {
    () => {
        "fio --name=x --ioengine=rdma --port=5000 --bs=64k --size=1m --iodepth=4 "
    };
}

macro_rules! fio {
    ($verb:literal) => {
        Program {
            by: "rdma_cm",
            name: concat!("fio --ioengine=rdma --verb=", $verb),
            server: concat!(fio_line!(), "--rw=read"),
            client: concat!(fio_line!(), "--rw=write --hostname=SERVER --verb=", $verb),
            says: "io=1024KiB",
            late: 0,
        }
    };
}

/// rxe asks for 128 READs and atomics on their way, of which the device answers 16: hence `-o`.
pub const CASES: &[Program] = &[
    cm("rping -s -V -C 20 -S 4000", "rping -c -V -C 20 -S 4000 -a SERVER", ""),
    cm("udaddy", "udaddy -s SERVER", "return status 0"),
    cm("ucmatose -c 3 -C 10 -S 5000", "ucmatose -c 3 -C 10 -S 5000 -s SERVER", "return status 0"),
    cm("rdma_server", "rdma_client -s SERVER", "end 0"),
    cm("rdma_xserver -c r", "rdma_xclient -c r -s SERVER", "end 0"),
    cm("rstream -T v -S 65536 -I 10 -C 10", "rstream -T v -S 65536 -I 10 -C 10 -s SERVER", "12m"),
    cm(
        "riostream -T v -S 4096 -I 10 -C 10",
        "riostream -T v -S 4096 -I 10 -C 10 -s SERVER",
        "800k",
    ),
    perftest!("rdma_cm", "ib_write_bw -R -n 50 -F", SECOND),
    perftest!("rdma_cm", "ib_read_bw -R -n 50 -F -o 16", SECOND),
    perftest!("rdma_cm", "ib_send_bw -R -n 50 -F", SECOND),
    perftest!("rdma_cm", "ib_atomic_bw -R -n 50 -F -o 16", SECOND),
    perftest!("rdma_cm", "ib_write_lat -R -n 20 -F", SECOND),
    perftest!("rdma_cm", "ib_read_lat -R -n 20 -F -o 16", SECOND),
    perftest!("rdma_cm", "ib_send_lat -R -n 20 -F", SECOND),
    perftest!("rdma_cm", "ib_send_lat -R -c UD -n 20 -F", ALL),
    perftest!("tcp", "ib_atomic_bw -n 50 -F -o 16", 0),
    perftest!("tcp", "ib_write_lat -n 20 -F", 0),
    perftest!("tcp", "ib_read_lat -n 20 -F -o 16", 0),
    perftest!("tcp", "ib_send_lat -n 20 -F", 0),
    fio!("write"),
    fio!("read"),
    Program {
        by: "rdma_cm",
        name: "fi_pingpong -p verbs -e msg",
        server: "fi_pingpong -p verbs -e msg -c -I 20 -S 4096",
        client: "fi_pingpong -p verbs -e msg -c -I 20 -S 4096 SERVER",
        says: "=20",
        late: 0,
    },
];

/// Messages to connection managers (queue pair 1) come late: perftest's server listens a second time after its
/// last word to the client, as qperf's does after its first, and Linux refuses a client that is quicker than a guest
/// on a busy machine.
fn late(times: u32, by: Duration) -> String {
    let by = by.as_millis();
    format!(
        r#"
[[fault]]
on = "packet"
action = "delay"
direction = "sent"
qpn = 1
delay = "{by}ms"
times = {times}
"#
    )
}

/// perftest's REQ and RTU of its first connection, REQ of its second.
const SECOND: u32 = 3;
/// As many as there are.
const ALL: u32 = 1000;
/// Longer than that, and they are sent again meanwhile.
const LATEST: Duration = Duration::from_millis(500);

fn on_device(own: IpAddr, options: &[&str], line: &str) -> Running {
    let own = own.to_string();
    let options = [&["--address", &own], options].concat();
    Running::start(&options, &line.split(' ').collect::<Vec<_>>())
}

/// Tries a case again, from its server on, while the client is told that nobody listens. The server
/// has been started, but a loaded machine may take seconds until it listens, and none says on its
/// output when it does.
fn served(mut attempt: impl FnMut(Duration) -> Result<(), Failure>) -> Result<String, Failure> {
    let begin = Instant::now();
    for tries in 1.. {
        match attempt(Duration::from_millis(500) * tries) {
            Ok(()) => return Ok(format!("tries: {tries}, {:.1} s", begin.elapsed().as_secs_f64())),
            Err(Failure::Command { output, .. }) if tries < TRIES && is_early(&output) => {}
            Err(e) => return Err(e),
        }
    }
    unreachable!("the last one returns")
}

/// As rping, udaddy and perftest (first and second connection) print it: a REJ of reason 8 (invalid
/// service ID), or a SIDR_REP of status 1 (service ID not supported).
fn nobody_listens(output: &str) -> bool {
    let output = output.replace("error: ", "error ").replace("; error", ", error");
    [
        "RDMA_CM_EVENT_REJECTED, error 8",
        "RDMA_CM_EVENT_UNREACHABLE, error 1",
        "Unexpected CM event bl blka 8", // RDMA_CM_EVENT_REJECTED
    ]
    .iter()
    .any(|said| output.contains(said))
}

/// What other clients say of it, and of a TCP port.
fn is_early(output: &str) -> bool {
    let refused = [
        "Connection refused",              // rdma_client, rsockets, libfabric
        "event is RDMA_CM_EVENT_REJECTED", // fio
        "RDMA CM: Event rejected",         // qperf
        "failed to connect",               // qperf
        "Couldn't connect to",             // perftest
        UNEVEN_CLOCK,
    ];
    nobody_listens(output) || refused.iter().any(|said| output.contains(said))
}

/// SIGTERM: `bellpush run` passes it on to the program.
fn stop(running: &Running) {
    let _ = kill(Pid::from_raw(running.id().cast_signed()), Signal::SIGTERM); // it may have ended
}

fn failed(line: &str, why: String, output: String) -> Failure {
    Failure::Command { line: line.into(), why, output }
}

/// What a program here said, if it ended well.
fn ended(line: &str, mut running: Running) -> Result<String, Failure> {
    let status = running.within(TIMEOUT);
    if status.is_none() {
        stop(&running);
    }
    let Ended { text, .. } = running.end();
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => Err(failed(line, status.to_string(), text)),
        None => Err(failed(line, "no end in time".into(), text)),
    }
}

/// Whether a client is through, and not only gone: rsockets' end with 0 where nobody listens.
fn says(line: &str, text: String, word: &str) -> Result<(), Failure> {
    if text.contains(word) {
        return Ok(());
    }
    Err(failed(line, format!("does not say '{word}'"), text))
}

/// The client's failure, and what its server said of it.
fn with_server(failure: Failure, said: &str) -> Failure {
    match failure {
        Failure::Command { line, why, output } => {
            failed(&line, why, format!("{output}\nits server:\n{said}"))
        }
        other => other,
    }
}

/// Ends programs of the guest. More than once: the shell may not have come to start one.
fn reap(guest: &Guest, line: &str) -> Result<(), Failure> {
    let (program, _) = line.split_once(' ').unwrap_or((line, ""));
    let kill = format!("for i in 1 2 3 4; do killall -9 {program}; sleep 0.3; done; true");
    guest.run(&kill, TIMEOUT).map(drop)
}

/// The guest asks us. What serves until it is stopped is stopped.
fn ask(
    guest: &Guest,
    server: &str,
    client: &str,
    word: &str,
    own: IpAddr,
    stays: bool,
) -> Result<String, Failure> {
    served(|patience| {
        let running = on_device(own, &[], server);
        thread::sleep(patience); // its device is not there yet
        let asked = guest.run(client, TIMEOUT).and_then(|text| says(client, text, word));
        if let Err(e) = asked {
            stop(&running);
            reap(guest, client)?; // it may wait for more
            return Err(with_server(e, &running.end().text));
        }
        if stays {
            stop(&running);
            running.end();
            return Ok(());
        }
        ended(server, running).map(drop)
    })
}

/// We ask the guest.
fn ask_guest(
    guest: &Guest,
    server: &str,
    client: &str,
    word: &str,
    own: IpAddr,
    (late_ones, stays): (u32, bool),
) -> Result<String, Failure> {
    let script = Path::new(FOLDER).join("late.toml");
    let name = script.to_string_lossy();
    let options: &[&str] = if late_ones > 0 { &["--fault", &name] } else { &[] };
    served(|patience| {
        fs::write(&script, late(late_ones, patience.min(LATEST)))?;
        let serving = guest.start(server)?;
        thread::sleep(patience);
        let running = on_device(own, options, client);
        let asked = ended(client, running).and_then(|text| says(client, text, word));
        if asked.is_err() || stays {
            reap(guest, server)?;
            let said = serving.said(TIMEOUT); // it was killed, or failed as its client did
            return asked.map_err(|e| with_server(e, &said));
        }
        serving.finish(TIMEOUT).map(drop)
    })
}

impl Program {
    fn is_there(&self) -> bool {
        there(self.server.split(' ').next().unwrap_or_default())
    }

    /// The guest asks us.
    pub fn asked(&self, guest: &Guest, own: IpAddr) -> Result<String, Failure> {
        if !self.is_there() {
            return Ok(NOT_THERE.into());
        }
        let client = self.client.replace("SERVER", &own.to_string());
        ask(guest, &self.server_at(own), &client, self.says, own, false)
    }

    /// We ask the guest.
    pub fn asking(&self, guest: &Guest, own: IpAddr, at: IpAddr) -> Result<String, Failure> {
        if !self.is_there() {
            return Ok(NOT_THERE.into());
        }
        let client = self.client.replace("SERVER", &at.to_string());
        ask_guest(guest, &self.server_at(own), &client, self.says, own, (self.late, false))
    }

    /// Servers are at IPv4's addresses by themselves.
    fn server_at(&self, own: IpAddr) -> String {
        match own {
            IpAddr::V4(_) => self.server.into(),
            IpAddr::V6(_) => format!("{} -a ::", self.server),
        }
    }
}

/// A file that both sides have.
const FILE: &str = "bin/busybox";

/// rcopy, from the guest to us.
pub fn copied(guest: &Guest, own: IpAddr) -> Result<String, Failure> {
    if !there("rcopy") {
        return Ok(NOT_THERE.into());
    }
    let folder = Path::new(FOLDER);
    let to = folder.join("copied");
    let client = format!("rcopy /{FILE} {own}:{}", to.display());
    let done = ask(guest, "rcopy", &client, "bytes in", own, true)?;
    let is_same = fs::read(&to)? == fs::read(folder.join("root").join(FILE))?;
    fs::remove_file(to)?;
    expect("whether the copy is the file", is_same, true)?;
    Ok(done)
}

/// rcopy, from us to the guest.
pub fn copied_there(guest: &Guest, own: IpAddr, at: IpAddr) -> Result<String, Failure> {
    if !there("rcopy") {
        return Ok(NOT_THERE.into());
    }
    let file = Path::new(FOLDER).join("root").join(FILE);
    let client = format!("rcopy {} {at}:/tmp/copied", file.display());
    let done = ask_guest(guest, "rcopy", &client, "bytes in", own, (0, true))?;
    guest.run(&format!("cmp /{FILE} /tmp/copied && rm /tmp/copied"), TIMEOUT)?;
    Ok(done)
}

/// Tests of qperf. UC and UD it has without rdma_cm alone, and then without a GRH.
pub const QPERF: &[&str] =
    &["rc_lat", "rc_bw", "rc_rdma_write_lat", "rc_rdma_read_bw", "ver_rc_fetch_add"];

fn qperf(test: &str, at: IpAddr) -> String {
    format!("qperf -cm1 -t 1 {at} {test}")
}

/// A test of qperf's, the guest serving.
pub fn measured(guest: &Guest, test: &str, own: IpAddr, at: IpAddr) -> Result<String, Failure> {
    if !there("qperf") {
        return Ok(NOT_THERE.into());
    }
    ask_guest(guest, "qperf", &qperf(test, at), "=", own, (1, true))
}

/// qperf's client in the guest. Its server crashes when a test is over, and takes its device along: the
/// guest's kernel asks for the connection's end 16 times, for nearly two minutes. Other cases run meanwhile.
pub struct Measuring {
    server: Running,
    client: GuestCommand,
}

impl Measuring {
    const TIMEOUT: Duration = Duration::from_secs(150);

    /// Begins at an address that no other case uses.
    pub fn begin(guest: &Guest, test: &str, own: IpAddr) -> Result<Self, Failure> {
        let server = on_device(own, &[], "qperf");
        wait_for("19765", LISTEN);
        // Under a name of its own: servers of other cases are ended by theirs.
        let line = format!("cp /usr/bin/qperf /tmp/asks; /tmp/asks -cm1 -t 1 {own} {test}");
        Ok(Self { server, client: guest.start(&line)? })
    }

    pub fn end(self) -> Result<String, Failure> {
        let said = self.client.finish(Self::TIMEOUT);
        stop(&self.server);
        let server = self.server.end().text;
        match said {
            Ok(text) if text.contains('=') => Ok(crate::oneline(text)),
            Ok(text) => Err(failed("qperf", "says no result".into(), text)),
            Err(e) => Err(with_server(e, &server)),
        }
    }
}

/// Where nobody listens, the guest's kernel says so, and we understand it.
pub fn rejected(own: IpAddr, at: IpAddr) -> Result<String, Failure> {
    if !there("rping") {
        return Ok(NOT_THERE.into());
    }
    let line = format!("rping -c -d -C 1 -p 9 -a {at}");
    let ended = on_device(own, &[], &line).end();
    if nobody_listens(&ended.text) {
        return Ok(String::new());
    }
    Err(failed("rping", "is not told".into(), ended.text))
}

const NOT_THERE: &str = "the program is not installed: not looked at";

//! Connections by rdma_cm: librdmacm's programs in the guest, on its kernel's connection manager,
//! and on the preloaded device, on ours.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::guest::Guest;
use crate::preloaded::{Running, there};

const TIMEOUT: Duration = Duration::from_secs(40);

/// How often a client asks a server that has been started.
const ASKED_AT_MOST: usize = 10;

/// A case: the server, and the client but for the server's address.
pub const CASES: &[(&str, &str)] = &[
    ("rping -s -V -C 20 -S 4000", "rping -c -V -C 20 -S 4000 -a"),
    ("udaddy", "udaddy -s"),
    ("ib_write_bw -R -n 50 -F", "ib_write_bw -R -n 50 -F"),
];

fn on_device(own: IpAddr, line: &str) -> Running {
    let own = own.to_string();
    Running::start(&["--address", &own], &line.split(' ').collect::<Vec<_>>())
}

/// Asks again while the other side says that nobody listens: its server has been started, but a loaded machine may
/// take seconds until it calls `rdma_listen`, and no server says on its output when it has.
fn served(mut ask: impl FnMut() -> Result<(), Failure>) -> Result<usize, Failure> {
    for asked in 1.. {
        match ask() {
            Ok(()) => return Ok(asked),
            Err(Failure::Command { output, .. })
                if asked < ASKED_AT_MOST && nobody_listens(&output) =>
            {
                std::thread::sleep(Duration::from_secs(1));
            }
            Err(e) => return Err(e),
        }
    }
    unreachable!("the last one returns")
}

/// As perftest, rping and udaddy print it: a REJ of reason 8 (invalid service ID), or a SIDR_REP of status 1 (service
/// ID not supported).
fn nobody_listens(output: &str) -> bool {
    let output = output.replace("error: ", "error ").replace("; error", ", error");
    ["RDMA_CM_EVENT_REJECTED, error 8", "RDMA_CM_EVENT_UNREACHABLE, error 1"]
        .iter()
        .any(|said| output.contains(said))
}

fn ended(line: &str, running: Running) -> Result<(), Failure> {
    let ended = running.end();
    match ended.code {
        Some(0) => Ok(()),
        code => Err(Failure::Command {
            line: line.into(),
            why: format!("status {code:?}"),
            output: ended.text,
        }),
    }
}

/// The guest asks us.
pub fn asked(
    guest: &Guest,
    (server, client): (&str, &str),
    own: IpAddr,
) -> Result<String, Failure> {
    if !there(server.split(' ').next().unwrap_or_default()) {
        return Ok("no rdmacm-utils: not looked at".into());
    }
    let running = on_device(own, server);
    let begin = Instant::now();
    // Its device is not there yet.
    std::thread::sleep(Duration::from_millis(500));
    let asked = served(|| guest.run(&format!("{client} {own}"), TIMEOUT).map(drop))?;
    ended(server, running)?;
    Ok(format!("asked {asked} times, {:.1} s", begin.elapsed().as_secs_f64()))
}

/// We ask the guest.
pub fn asking(
    guest: &Guest,
    (server, client): (&str, &str),
    own: IpAddr,
    at: IpAddr,
) -> Result<String, Failure> {
    if !there(server.split(' ').next().unwrap_or_default()) {
        return Ok("no rdmacm-utils: not looked at".into());
    }
    let serving = guest.start(server)?;
    std::thread::sleep(Duration::from_millis(500));
    let asked = served(|| ended(client, on_device(own, &format!("{client} {at}"))))?;
    serving.finish(TIMEOUT)?;
    Ok(format!("asked {asked} times"))
}

/// Where nobody listens, the guest's kernel says so, and we understand it.
pub fn rejected(own: IpAddr, at: IpAddr) -> Result<String, Failure> {
    if !there("rping") {
        return Ok("no rdmacm-utils: not looked at".into());
    }
    let ended = on_device(own, &format!("rping -c -d -C 1 -p 9 -a {at}")).end();
    if nobody_listens(&ended.text) {
        return Ok(String::new());
    }
    Err(Failure::Command { line: "rping".into(), why: "is not told".into(), output: ended.text })
}

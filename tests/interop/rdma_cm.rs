//! Connections by rdma_cm: librdmacm's programs in the guest, on its kernel's connection manager,
//! and on the preloaded device, on ours.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::guest::Guest;
use crate::preloaded::{Running, there};

const TIMEOUT: Duration = Duration::from_secs(40);

/// How often a case is tried.
const TRIES: u32 = 8;

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

/// Tries a case again, from its server on, while the client is told that nobody listens. The server
/// has been started, but a loaded machine may take seconds until it calls `rdma_listen`, and none
/// says on its output when it has. perftest listens twice, and its client does not wait for the
/// second time.
fn served(mut attempt: impl FnMut(Duration) -> Result<(), Failure>) -> Result<String, Failure> {
    let begin = Instant::now();
    for tries in 1.. {
        match attempt(Duration::from_millis(500) * tries) {
            Ok(()) => return Ok(format!("tries: {tries}, {:.1} s", begin.elapsed().as_secs_f64())),
            Err(Failure::Command { output, .. }) if tries < TRIES && nobody_listens(&output) => {}
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
    served(|patience| {
        let running = on_device(own, server);
        std::thread::sleep(patience); // its device is not there yet
        guest.run(&format!("{client} {own}"), TIMEOUT)?;
        ended(server, running)
    })
}

/// We ask the guest.
pub fn asking(
    guest: &Guest,
    (server, client): (&str, &str),
    own: IpAddr,
    at: IpAddr,
) -> Result<String, Failure> {
    let program = server.split(' ').next().unwrap_or_default();
    if !there(program) {
        return Ok("no rdmacm-utils: not looked at".into());
    }
    served(|patience| {
        let serving = guest.start(server)?;
        std::thread::sleep(patience);
        if let Err(e) = ended(client, on_device(own, &format!("{client} {at}"))) {
            // More than once: the shell may not have come to start it.
            let kill = format!("for i in 1 2 3 4; do killall -9 {program}; sleep 0.3; done; true");
            guest.run(&kill, TIMEOUT)?;
            let _ = serving.finish(TIMEOUT); // it was killed, or failed as its client did
            return Err(e);
        }
        serving.finish(TIMEOUT).map(drop)
    })
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

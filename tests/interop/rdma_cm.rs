//! Connections by rdma_cm: librdmacm's programs in the guest, on its kernel's connection manager,
//! and on the preloaded device, on ours.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::guest::Guest;
use crate::preloaded::{Running, there};

const TIMEOUT: Duration = Duration::from_secs(40);

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
    // A server that does not listen yet rejects, and its device is not there yet either.
    std::thread::sleep(Duration::from_millis(500));
    guest.run(&format!("{client} {own}"), TIMEOUT)?;
    ended(server, running)?;
    Ok(format!("{:.1} s", begin.elapsed().as_secs_f64()))
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
    std::thread::sleep(Duration::from_millis(1500));
    ended(client, on_device(own, &format!("{client} {at}")))?;
    serving.finish(TIMEOUT)?;
    Ok(String::new())
}

/// Where nobody listens, the guest's kernel says so, and we understand it.
pub fn rejected(own: IpAddr, at: IpAddr) -> Result<String, Failure> {
    if !there("rping") {
        return Ok("no rdmacm-utils: not looked at".into());
    }
    let ended = on_device(own, &format!("rping -c -d -C 1 -p 9 -a {at}")).end();
    if ended.text.contains("RDMA_CM_EVENT_REJECTED, error 8") {
        return Ok(String::new());
    }
    Err(Failure::Command { line: "rping".into(), why: "is not told".into(), output: ended.text })
}

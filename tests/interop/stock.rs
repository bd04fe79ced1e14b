//! Stock clients of the guest, unchanged, against `bellpush serve`.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::failure::{Failure, expect};
use crate::guest::{Guest, HOST_IP};
use crate::soft::Served;

const PORT: u16 = 18515;
const TIMEOUT: Duration = Duration::from_secs(40);

/// A case: program, the client's arguments, the server's arguments.
pub const CASES: &[(&str, &str, &[&str])] = &[
    ("ibv_rc_pingpong", "-n 200 -m 1024", &["--iterations", "200"]),
    ("ibv_rc_pingpong", "-n 50 -m 4096 -s 100000", &["--iterations", "50", "--mtu", "4096"]),
    ("ibv_uc_pingpong", "-n 200", &["--iterations", "200"]),
    ("ibv_ud_pingpong", "-n 200 -s 1024", &["--iterations", "200"]),
    ("ib_write_bw", "-n 200 -s 65536", &["--mtu", "4096"]),
    ("ib_write_bw", "-n 1000 -s 8 -m 256", &[]),
    ("ib_read_bw", "-n 200 -s 65536", &["--mtu", "4096"]),
    ("ib_send_bw", "-n 200 -s 65536", &["--mtu", "4096"]),
    // Every size from 2 bytes to 8 MiB.
    ("ib_write_bw", "-n 5 -a", &["--mtu", "4096"]),
    ("ib_read_bw", "-n 5 -a", &["--mtu", "4096"]),
    ("ib_send_bw", "-n 5 -a", &["--mtu", "4096"]),
];

/// perftest measures the processor's clock before anything else, and gives up where that went badly: on a busy host, a guest's
/// time does not pass evenly.
pub const UNEVEN_CLOCK: &str = "Correlation coefficient";
const TRIES: usize = 4;

/// Runs the client in the guest, again where its clock was uneven; what both sides said at their ends.
pub fn run(
    guest: &Guest,
    case: (&str, &str, &[&str]),
    gid: u32,
    nic: IpAddr,
) -> Result<String, Failure> {
    for _ in 1..TRIES {
        match run_once(guest, case, gid, nic) {
            Err(why) if why.to_string().contains(UNEVEN_CLOCK) => {}
            ended => return Ok(ended?.0),
        }
    }
    Ok(run_once(guest, case, gid, nic)?.0)
}

/// What both sides said, and the server, whose queue pair still answers.
fn run_once(
    guest: &Guest,
    (program, client, server): (&str, &str, &[&str]),
    gid: u32,
    nic: IpAddr,
) -> Result<(String, Served), Failure> {
    // Clients come from the guest.
    let listen = ["--listen", &HOST_IP.to_string()];
    let mut served = Served::start(program, nic, PORT, &[server, &listen].concat())?;
    // perftest calls the index -x.
    let index = if program.starts_with("ibv_") { "-g" } else { "-x" };
    let line = format!("{program} -d rxe0 {index} {gid} -p {PORT} {client} {HOST_IP}");
    let said = guest
        .run(&line, TIMEOUT)
        .map_err(|client| served.failed(&format!("its client: {client}")))?;
    let result = match program.starts_with("ibv_") {
        true => said.lines().find(|line| line.contains("usec/iter")),
        // The last row below the heading: bytes, iterations, peak, average, rate.
        false => said
            .lines()
            .skip_while(|line| !line.contains("#bytes"))
            .take_while(|line| !line.starts_with("---"))
            .last(),
    };
    let result: Vec<&str> = result.unwrap_or("no result").split_whitespace().collect();
    let both = format!("client: {}; server: {}", result.join(" "), served.line(TIMEOUT)?);
    Ok((both, served))
}

/// A pingpong that is captured: tshark finds its packets, and none of them malformed.
pub fn captured(guest: &Guest, gid: u32, nic: IpAddr, file: &Path) -> Result<String, Failure> {
    let name = file.to_string_lossy();
    let server: &[&str] = &["--iterations", "20", "--pcap", &name];
    let (_, served) = run_once(guest, ("ibv_rc_pingpong", "-n 20", server), gid, nic)?;
    served.finish(TIMEOUT)?; // its end writes what is still to be written
    let packets = |filter: &str| -> Result<Option<usize>, Failure> {
        let mut tshark = Command::new("tshark");
        tshark.args(["-n", "-r", &name, "-Y", filter]).stdin(Stdio::null());
        match tshark.output() {
            Ok(output) => Ok(Some(output.stdout.split(|&b| b == b'\n').count() - 1)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    };
    let Some(all) = packets("infiniband")? else { return Ok("no tshark: not looked at".into()) };
    expect("malformed packets", packets("_ws.malformed")?, Some(0))?;
    // Each message of 4096 bytes takes 4 packets of path MTU 1024, and acknowledgements come.
    expect("whether all are there", all > 2 * 20 * 4, true)?;
    Ok(format!("{all} packets, none malformed"))
}

//! `bellpush serve`: the software NIC as peer of foreign programs.
//!
//! It acts as the server of rdma-core's pingpong programs and of perftest's bandwidth tests, so
//! that unmodified clients run against the software NIC. It is also a verbs peer for `./x interop`.

mod end;
mod exchange;
mod perftest;
mod pingpong;
mod verbs;

use std::io::{BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bellpush::nic::soft::trace::Tracing;
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::nic::{Mtu, QpType};

use crate::cli::CliError;
use crate::link::LinkArgs;
use crate::metrics;
use end::End;
use exchange::ServeError;

/// Longest silence of a client: perftest's clients are silent while they measure.
const SILENCE: Duration = Duration::from_secs(120);

/// Most verbs drivers at once.
const MAX_DRIVERS: usize = 16;

/// Time for which the last client's queue pair still answers: many times a stock client's ACK
/// timeout of 67 ms.
const LINGER: Duration = Duration::from_secs(3);

/// Between two looks at what the NIC counts, and how long one waits for its engine.
const LOOK: Duration = Duration::from_millis(100);

/// Programs for which this command can be the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Program {
    IbvRcPingpong,
    IbvUcPingpong,
    IbvUdPingpong,
    IbWriteBw,
    IbReadBw,
    IbSendBw,
    /// The peer of ./x interop (interop/verbs_peer.c)
    Verbs,
}

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Program for which to be the server
    program: Program,
    #[command(flatten)]
    link: LinkArgs,
    /// TCP port of the exchange
    #[arg(long, default_value_t = 18515)]
    port: u16,
    /// Address on which the exchange listens, 0.0.0.0 for all: clients are not authenticated
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST.into())]
    listen: IpAddr,
    /// Clients to serve, one after the other; 0 for any number
    #[arg(long, default_value_t = 1)]
    clients: u32,
    /// Messages of a pingpong, like the client's -n
    #[arg(long, default_value_t = 1000)]
    iterations: u32,
    /// Path MTU: for a pingpong the client's -m, for perftest the largest accepted one
    #[arg(long, default_value_t = 1024, value_parser = mtu)]
    mtu: u32,
    /// Serve the NIC's counters for Prometheus meanwhile: http://127.0.0.1:PORT/metrics; 0: a free port
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "9464")]
    metrics: Option<u16>,
}

fn mtu(text: &str) -> Result<u32, String> {
    let mtu = text.parse().ok().and_then(Mtu::new).ok_or("256, 512, 1024, 2048 or 4096")?;
    Ok(mtu.bytes() as u32)
}

/// A NIC and its address.
struct Served {
    nic: Arc<SoftNic>,
    address: IpAddr,
}

pub fn run(args: &ServeArgs) -> Result<ExitCode, CliError> {
    let served = Arc::new(open(args)?);
    let listener = TcpListener::bind(SocketAddr::new(args.listen, args.port)).map_err(|e| {
        let what = format!("TCP port {} of {}: {e}", args.port, args.listen);
        CliError::new(what, "give another --port or --listen")
    })?;
    let drivers = Drivers::default();
    let at = SocketAddr::new(args.listen, args.port);
    println!("ready: {:?} on {}, TCP {at}", args.program, served.address);
    let mut status = ExitCode::SUCCESS;
    let mut left = args.clients;
    // The last client's queue pair answers until the next client arrives.
    let mut kept: Option<End> = None;
    for stream in listener.incoming() {
        let outcome =
            stream.map_err(ServeError::from).and_then(|s| client(args, &served, &drivers, s));
        match outcome {
            Ok((what, end)) => {
                println!("{what}");
                drop(std::mem::replace(&mut kept, end));
            }
            Err(e) => {
                eprintln!("bellpush: {e}");
                status = ExitCode::FAILURE;
            }
        }
        let _ = std::io::stdout().flush(); // the reader of stdout may have gone
        left = left.wrapping_sub(1);
        if left == 0 {
            break;
        }
    }
    if kept.is_some() {
        thread::sleep(LINGER);
    }
    Ok(status)
}

/// The verbs drivers that are connected.
#[derive(Clone, Default)]
struct Drivers(Arc<()>);

impl Drivers {
    /// Counts one driver more while the result is kept.
    fn enter(&self) -> Result<Self, ServeError> {
        // The listener holds one itself.
        match Arc::strong_count(&self.0) <= MAX_DRIVERS {
            true => Ok(self.clone()),
            false => Err(ServeError::Drivers(MAX_DRIVERS)),
        }
    }
}

fn open(args: &ServeArgs) -> Result<Served, CliError> {
    let unopened = |e: &dyn std::fmt::Display| {
        let remedy = "give --address one of this machine's that no other NIC has";
        CliError::new(format!("the software NIC did not start: {e}"), remedy)
    };
    let link = args.link.open().map_err(|e| unopened(&e))?;
    let address = link.address();
    eprintln!("bellpush: {}", link.describe());
    let tracing = args.metrics.map(|_| Tracing::new(false, true)).transpose();
    let tracing = tracing.map_err(|e| unopened(&e))?;
    let trace = tracing.clone().map(|tracing| (tracing, 0));
    let config = SoftConfig { trace, ..SoftConfig::default() };
    let nic = SoftNic::open_on(config, link).map_err(|e| unopened(&e))?;
    if let (Some(port), Some(tracing)) = (args.metrics, &tracing) {
        metrics::serve(port, tracing)?;
        look(&nic).map_err(|e| unopened(&e))?;
    }
    Ok(Served { nic, address })
}

/// Has the NIC say now and then what it has counted, as long as it lives.
fn look(nic: &Arc<SoftNic>) -> std::io::Result<()> {
    let nic = Arc::downgrade(nic);
    let look = move || {
        while let Some(nic) = nic.upgrade() {
            nic.look_for_trace(LOOK);
            drop(nic);
            thread::sleep(LOOK);
        }
    };
    thread::Builder::new().name("bellpush-look".into()).spawn(look).map(drop)
}

fn client(
    args: &ServeArgs,
    served: &Arc<Served>,
    drivers: &Drivers,
    mut stream: TcpStream,
) -> Result<(String, Option<End>), ServeError> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    stream.set_nodelay(true)?;
    let Served { nic, address } = &**served;
    let mtu = Mtu::new(args.mtu as usize).unwrap_or(Mtu::MAX);
    // The two sides of perftest tell each other when they are done.
    let perftest = |test, stream| Ok((perftest::serve(nic, *address, test, mtu, stream)?, None));
    let kind = match args.program {
        Program::IbvRcPingpong => QpType::Rc,
        Program::IbvUcPingpong => QpType::Uc,
        Program::IbvUdPingpong => QpType::Ud,
        Program::IbWriteBw => return perftest(perftest::Test::Write, stream),
        Program::IbReadBw => return perftest(perftest::Test::Read, stream),
        Program::IbSendBw => return perftest(perftest::Test::Send, stream),
        Program::Verbs => {
            // Drivers hold several connections at once.
            let (served, driver) = (served.clone(), drivers.enter()?);
            thread::Builder::new().name("bellpush-verbs".into()).spawn(move || {
                let _driver = driver;
                let lines = match stream.try_clone() {
                    Ok(read) => BufReader::new(read),
                    Err(e) => return eprintln!("bellpush: {e}"),
                };
                if let Err(e) = verbs::serve(&served.nic, served.address, lines, stream) {
                    eprintln!("bellpush: {e}");
                }
            })?;
            return Ok(("a driver".into(), None));
        }
    };
    let (what, end) = pingpong::serve(nic, *address, kind, mtu, args.iterations, &mut stream)?;
    Ok((what, (kind == QpType::Rc).then_some(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_so_many_and_no_more() {
        let drivers = Drivers::default();
        let mut all: Vec<_> = (0..MAX_DRIVERS).map(|_| drivers.enter().unwrap()).collect();
        assert!(matches!(drivers.enter(), Err(ServeError::Drivers(MAX_DRIVERS))));
        all.pop();
        assert!(drivers.enter().is_ok(), "one has left");
    }
}

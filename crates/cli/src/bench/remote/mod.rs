//! `bellpush bench --listen` and `--connect`: the two ends of a path in two processes, of one host or of two. The side
//! that connects says what is measured; each side looks at what comes to it with expectations and a digest of its own.

mod connects;
mod listens;
mod pair;
mod peer;
mod said;

use std::net::IpAddr;
use std::process::ExitCode;

use bellpush::transport::Path;
use bellpush_cli::report::{Meta, Results, Row};

use self::peer::Peer;
use self::said::{Has, Way};
use super::measure::Ask;
use super::payload::Payload;
use super::test_bed::{Apart, Devices, TestBed};
use crate::cli::{self, CliError};
use crate::link::Wire;
use crate::plan::{BenchPlan, Remote};

/// What a side has measured: circumstances and rows, also when an error ended it before all rows were.
struct Measured {
    meta: Meta,
    rows: Vec<Row>,
    ended: Result<(), CliError>,
}

/// Measures as one of two sides.
pub fn run(plan: &BenchPlan, remote: &Remote, payload: &Payload) -> Result<ExitCode, CliError> {
    // Before the other side is waited for: what is missing here need not keep it.
    let devices = Devices::open(plan)?;
    let (mut peer, measured) = match remote {
        Remote::Listen(place) => {
            let mut peer = Peer::listen(place)?;
            let measured = listens::measure(&mut peer, plan, devices);
            (peer, measured)
        }
        Remote::Connect { to, both_ways } => {
            let mut peer = Peer::connect(to)?;
            let measured = connects::measure(&mut peer, plan, devices, payload, *both_ways);
            (peer, measured)
        }
    };
    let Measured { meta, rows, ended } = measured.inspect_err(|why| peer.fail(why))?;
    let _ = ended.as_ref().inspect_err(|why| peer.fail(why));
    if rows.is_empty() {
        let nothing = || CliError::new("no path could be measured", "see what the sides say");
        return Err(ended.err().unwrap_or_else(nothing));
    }
    let results = Results { meta, results: rows };
    let emitted = cli::emit(&results, plan.json.as_deref(), plan.report.as_deref())?;
    ended.map(|()| emitted)
}

/// The devices of this side on the carrier that both have, and what the other side has.
fn open(
    peer: &mut Peer,
    plan: &BenchPlan,
    devices: Devices,
    (mine, theirs): (&Way, &Way),
) -> Result<(TestBed, IpAddr, Has), CliError> {
    let (here, wire) = (peer.here()?, mine.wire(theirs, plan)?);
    let address = match wire {
        Wire::Shm => None,
        Wire::Udp => plan.address.or((!here.is_loopback()).then_some(here)),
    };
    let apart = Apart { wire, address, name: format!("bench-{}", peer.root.port()) };
    let bed = TestBed::apart(plan, devices, &apart)?;
    match peer.swap(&said::Said::Has(Has::of(&bed, plan)))? {
        said::Said::Has(theirs) => Ok((bed, here, theirs)),
        other => Err(peer::out_of_step(&other)),
    }
}

fn ask(plan: &BenchPlan, bed: &TestBed, path: Path, here: IpAddr) -> Ask {
    let ask = super::ask(plan, bed, path);
    Ask { options: ask.options.clone().tcp_listen(here), ..ask }
}

/// The circumstances of this side, with what they are at the other.
fn meta(
    plan: &BenchPlan,
    bed: &TestBed,
    payload: &Payload,
    theirs: &Has,
) -> Result<Meta, CliError> {
    let mut meta = super::meta(bed, plan, payload)?;
    let Has { nic, executor, dest } = theirs;
    meta.notes.push(format!(
        "two processes; the other has NIC {nic} and executor {executor}, and messages to it arrive \
         in {dest} memory"
    ));
    meta.notes.push(
        "p50 and p99 are from the post to the completion at the sender; one way is half a round \
         trip, from a put to the sight of its signal at the other side"
            .into(),
    );
    Ok(meta)
}

//! How much there is to simulate: TLP transmissions, which take the time.

use super::build::{ANSWER_BYTES, MTU_BYTES};
use super::ops::{Operation, runs};
use super::{Layout, Params, PathModel, SimError, TestBedSpec};

/// Most TLP transmissions of one command: a minute or two of one core.
pub const MOST_TRANSMISSIONS: f64 = 4e8;

/// Refuses an operation of more steps than [`predict`](super::predict) can simulate.
///
/// # Errors
/// [`SimError::TooManySteps`].
pub fn check_steps(spec: TestBedSpec<'_>, path: PathModel, bytes: u32) -> Result<(), SimError> {
    if !path.carries(bytes) {
        return Ok(());
    }
    Operation::new(spec, Layout::Best, path, bytes, 1).program.check()
}

/// TLP transmissions, each hop counted, that [`predict`](super::predict) simulates of a path and
/// size, within a factor of two and a half; 0 where the path does not carry the size. It knows the
/// payload's TLPs alone, by their size and way.
pub fn transmissions(spec: TestBedSpec<'_>, path: PathModel, bytes: u32, in_flight: u32) -> f64 {
    if !path.carries(bytes) {
        return 0.0;
    }
    let (p, t): (&Params, _) = (spec.params, spec.topology);
    let way = t.route(spec.gpu, spec.nic);
    let mps = t.node(spec.nic).link.map_or(MTU_BYTES, |link| link.mps.bytes());
    let cut = way.roots(t).filter_map(|root| t.p2p_of(root).0.tlp_bytes).min();
    let peer = f64::from(cut.unwrap_or(mps).min(mps));
    let store = p.store_tlp_bytes.min(f64::from(mps));
    // Payload in a TLP on the near host's links, and how often the near links carry it.
    let (near, times) = match path {
        PathModel::PushInband => (store.min(peer) * p.inband_data_bytes / 64.0, 1.0),
        PathModel::PushKernel | PathModel::PushBlueflame => (store.min(peer), 1.0),
        PathModel::Pull => (f64::from(ANSWER_BYTES).min(peer), 1.0),
        PathModel::Staged => (store, 2.0),
    };
    // Beside the links there are the ways inside GPU and NIC; at the far host the NIC writes.
    let hops = way.nodes.len() as f64 + 1.0;
    let of_one = f64::from(bytes) * hops * (times / near + 1.0 / peer);
    of_one.max(hops) * runs(bytes, in_flight) as f64
}

//! Payloads that are sent before they have come: kind `payload`.
//!
//! A WQE may be posted to send what another one fetches, or what a peer writes. Nothing orders it behind those by
//! itself: a READ or an atomic of its own queue pair may still write there unless the WQE has the fence flag, and a
//! peer's WRITE has not landed before something says so. When the NIC learns of the WQE it knows what it has not
//! written yet. So it tells of a program that reads too early where that reads by sending.

use std::sync::Arc;

use super::{Finding, Kind, State};
use crate::objects::mr::Right;
use crate::objects::qp::Qp;
use crate::service::outstanding::entries;
use crate::service::payload::Domain;
use bellpush_wire::wqe::Wqe;

const UNFETCHED: &str =
    "payload where a READ or an atomic before it on the queue pair has yet to write";
const FENCE_REMEDY: &str = "set the fence flag, or post it when a completion of that READ or atomic, or of a later WQE, \
                            was polled";
const FENCE_RULE: &str =
    "InfiniBand vol. 1, 10.8.3, fence indicator; ibv_post_send(3), IBV_SEND_FENCE";
const UNLANDED: &str = "payload where a peer's WRITE has yet to arrive";
const ARRIVAL_REMEDY: &str = "post it when a receive that follows the WRITE on its queue pair has completed, or an atomic \
                              that follows it has changed its word";
const ARRIVAL_RULE: &str = "InfiniBand vol. 1, 9.5 (o9-20)";

/// Memory that an entry of a WQE names.
pub(super) struct Spot {
    /// Comparable between regions.
    place: u64,
    bytes: u64,
    /// As the WQE has it.
    address: u64,
}

impl Spot {
    fn meets(&self, other: &Self) -> bool {
        self.place < other.place.saturating_add(other.bytes)
            && other.place < self.place.saturating_add(self.bytes)
    }
}

/// Where a WQE gathers from.
pub(super) fn sources(wqe: &Wqe, bytes: &[u8], domain: Domain<'_>) -> Vec<Spot> {
    spots(wqe, bytes, domain, Right::Gather)
}

/// Where a READ or an atomic writes its result to.
pub(super) fn targets(wqe: &Wqe, bytes: &[u8], domain: Domain<'_>) -> Vec<Spot> {
    spots(wqe, bytes, domain, Right::LocalWrite)
}

/// What a WQE names, as far as its keys stand for memory and not for parts of other regions.
fn spots(wqe: &Wqe, bytes: &[u8], domain: Domain<'_>, right: Right) -> Vec<Spot> {
    let mut spots = Vec::new();
    for sge in entries(wqe, bytes) {
        if domain.regions.memory(sge.lkey.0).is_none() {
            continue;
        }
        let (key, mut address) = ((sge.lkey.0, sge.addr, sge.bytes), sge.addr.0);
        let _ =
            domain.regions.walk(domain.user, key, 0..sge.bytes as usize, right, &mut |span, n| {
                let place = super::writes::place(span.mem, span.offset);
                spots.push(Spot { place, bytes: n as u64, address });
                address = address.wrapping_add(n as u64);
                Ok(())
            }); // what is refused fails by itself
    }
    spots
}

/// Looks whether all that a new WQE gathers is there. `posted`: the WQE and its position; `pending`: what its queue
/// pair has not completed, with positions.
pub(super) fn look<'a>(
    state: &Arc<State>,
    qp: &Qp,
    (wqe, position): (&[u8], u64),
    sources: Vec<Spot>,
    pending: impl Iterator<Item = (u64, &'a [Spot])>,
) {
    let mut pending = pending;
    let unfetched = pending.find_map(|(at, targets)| {
        let meets = |source: &&Spot| targets.iter().any(|target| target.meets(source));
        sources.iter().find(meets).map(|source| (source, Some(at as u16)))
    });
    let unlanded = || {
        let meets = |it: &&Spot| state.is_landing_at((it.place, it.bytes as usize));
        sources.iter().find(meets).map(|source| (source, None))
    };
    let Some((spot, behind)) = unfetched.or_else(unlanded) else { return };
    let (seen, remedy, rule) = match behind {
        Some(_) => (UNFETCHED, FENCE_REMEDY, FENCE_RULE),
        None => (UNLANDED, ARRIVAL_REMEDY, ARRIVAL_RULE),
    };
    state.report(Finding {
        kind: Kind::Payload,
        qpn: qp.qpn,
        wqe: Some(position as u16),
        behind,
        posted_at: state.files.line(wqe, (qp.qpn, position as u16)),
        address: spot.address,
        bytes: spot.bytes as u32,
        seen,
        remedy,
        rule,
    });
}

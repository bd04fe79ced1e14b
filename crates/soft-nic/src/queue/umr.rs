//! UMRs in a send queue: when their turn has come, they change a memory key of this NIC.

use crate::objects::mr::User;
use crate::objects::qp::Qp;
use crate::service::outstanding::Failure;
use crate::vendor::of_parse;
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::umr::Umr;

/// Carries out the UMR of a WQE that changes a key.
pub(crate) fn change(qp: &Qp, key: u32, wqe: &[u8]) -> Result<(), Failure> {
    let umr = Umr::parse(wqe).map_err(of_parse);
    let umr = umr.map_err(|(_, vendor)| (Syndrome::MwBind, vendor))?;
    let user = User { pd: qp.pd, qpn: qp.qpn };
    let mut regions = qp.mrs.write();
    regions.land_all();
    let changed = regions.update(user, key, &umr);
    changed.map_err(|vendor| (Syndrome::MwBind, vendor))
}

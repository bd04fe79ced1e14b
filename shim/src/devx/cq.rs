//! `CREATE_CQ`.

use std::sync::Arc;

use bellpush_mem::View;
use bellpush_soft_nic::{Cq, CqAttr, CqLayout};

use super::prm::{Mailbox, cq};
use super::{EQN, Umem, at_least};
use crate::commands::Command;
use crate::context::Object;
use crate::error::Refusal;

const DBR_BYTES: usize = 8;
/// Largest CQ, as `log_max_cq_sz` says.
pub const LOG_MAX_CQ_SZ: u32 = 22;

/// A CQ in umems.
pub struct DevxCq {
    /// The NIC's.
    pub cq: Arc<Cq>,
    /// The page that a program rings when it has armed it.
    pub uar: View,
    _umems: [Arc<Umem>; 2],
}

/// Creates a CQ. Until somebody subscribes to its completion events, it is only polled.
pub fn create(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    at_least(cmd, cq::IN_BYTES)?;
    if cmd.flag(cq::CQE_COMP_EN) {
        return Err(Refusal::Unsupported("a CQ with compressed entries"));
    }
    if cmd.get(cq::CQ_PERIOD) != 0 || cmd.get(cq::CQ_MAX_COUNT) != 0 {
        return Err(Refusal::Unsupported("CQ moderation"));
    }
    for (what, field, must) in
        [("CQ's page offset", cq::PAGE_OFFSET, 0), ("CQ's event queue", cq::C_EQN, EQN.into())]
    {
        let value = cmd.get(field);
        if value != must {
            return Err(Refusal::Value { what, value, must: "0" });
        }
    }
    let entry_bytes = match cmd.get(cq::CQE_SZ) {
        0 => 64,
        // 128 bytes, and the same without padding between two of 64.
        1 => 128,
        value => return Err(Refusal::Value { what: "cqe_sz", value, must: "0 or 1" }),
    };
    let log = cmd.word(cq::LOG_CQ_SIZE);
    if log > LOG_MAX_CQ_SZ {
        let must = "within log_max_cq_sz";
        return Err(Refusal::Value { what: "log_cq_size", value: log.into(), must });
    }
    let uar = cmd.word(cq::UAR_PAGE);
    let page = c.objects.uars.get(&uar);
    let page = page.ok_or(Refusal::Number { what: "UAR page", number: uar })?.clone();
    let buffer = super::umem(c.objects, cmd.word(cq::UMEM_ID))?;
    let record = super::umem(c.objects, cmd.word(cq::DBR_UMEM_ID))?;
    let ring = buffer.written(cmd.get(cq::UMEM_OFFSET), entry_bytes << log)?;
    let dbr = record.queue(cmd.get(cq::DBR_ADDR), DBR_BYTES)?;
    let layout = CqLayout {
        entry_bytes,
        collapsed: cmd.flag(cq::CC),
        overrun_ignored: cmd.flag(cq::OI),
        timestamp: None,
    };
    let attr = CqAttr { ring, dbr, uar: page.clone(), notify: None };
    let cq = c.context.device.nic.create_cq_with(&attr, layout)?;
    let number = cq.number();
    let object = DevxCq { cq, uar: page, _umems: [buffer, record] };
    Ok((Object::DevxCq(Arc::new(object)), number))
}

//! The queue pair state machine: which moves there are, and which attributes each needs and takes
//! (InfiniBand vol. 1, 10.3.1 and 11.2.5.2; the same table as Linux's `qp_state_table`).
//!
//! A send queue that meets an error goes to ERR for all types; the state SQE, in which UC and UD
//! would leave the receive queue alive, is not used.

use bellpush_nic::{
    Access, AddressVector, Change, Connection, MAX_RD_ATOMIC, Mtu, NicAddress, NicError, QpState,
    QpType,
};
use bellpush_wire::{Psn, Qpn};

/// Attributes in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) access: Access,
    pub(crate) qkey: u32,
    pub(crate) av: AddressVector,
    pub(crate) path_mtu: Mtu,
    pub(crate) dest_qpn: Qpn,
    pub(crate) rq_psn: Psn,
    pub(crate) sq_psn: Psn,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) sqd_event: bool,
    /// Named instead of the one that follows from the path.
    pub(crate) src_port: Option<u16>,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            access: Access::NONE,
            qkey: 0,
            av: AddressVector::to(NicAddress::InProcess(0)),
            path_mtu: Mtu::MAX,
            dest_qpn: Qpn(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            sqd_event: false,
            src_port: None,
        }
    }
}

const ACCESS: u32 = 1 << 0;
const PKEY: u32 = 1 << 1;
const PORT: u32 = 1 << 2;
const QKEY: u32 = 1 << 3;
const AV: u32 = 1 << 4;
const MTU: u32 = 1 << 5;
const DEST_QPN: u32 = 1 << 6;
const RQ_PSN: u32 = 1 << 7;
const SQ_PSN: u32 = 1 << 8;
const MAX_RD: u32 = 1 << 9;
const MAX_DEST_RD: u32 = 1 << 10;
const MIN_RNR: u32 = 1 << 11;
const TIMEOUT: u32 = 1 << 12;
const RETRY: u32 = 1 << 13;
const RNR_RETRY: u32 = 1 << 14;
const SQD_EVENT: u32 = 1 << 15;
const SRC_PORT: u32 = 1 << 16;

const NAMES: [&str; 17] = [
    "access flags",
    "pkey index",
    "port",
    "qkey",
    "address vector",
    "path MTU",
    "destination QPN",
    "RQ PSN",
    "SQ PSN",
    "max_rd_atomic",
    "max_dest_rd_atomic",
    "min_rnr_timer",
    "timeout",
    "retry_cnt",
    "rnr_retry",
    "SQD event request",
    "UDP source port",
];

/// What a move needs, and what it takes besides; `None` for a move that there is not.
fn rule(kind: QpType, from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    use QpType::*;
    let address = PKEY
        | PORT
        | match kind {
            Ud => QKEY,
            Dci => 0,
            _ => ACCESS,
        };
    let live = match kind {
        Rc | XrcRecv | Dct => ACCESS | MIN_RNR,
        Dci => MIN_RNR,
        Uc | XrcSend => ACCESS,
        Ud => QKEY,
    };
    Some(match (from, to) {
        (_, Reset | Err) => (0, 0),
        (Reset, Init) => (address, 0),
        (Init, Init) => (0, address),
        (Init, Rtr) => match kind {
            Rc => (AV | MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | MIN_RNR, ACCESS | PKEY),
            XrcRecv => (AV | MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | MIN_RNR, ACCESS | PKEY),
            Uc | XrcSend => (AV | MTU | DEST_QPN | RQ_PSN, ACCESS | PKEY),
            Ud => (0, PKEY | QKEY),
            // What a path says of its peer, each WQE says.
            Dci => (MTU, AV | PKEY),
            Dct => (AV | MTU | MIN_RNR, ACCESS | PKEY),
        },
        (Rtr, Rts) => match kind {
            Rc | XrcSend | Dci => (SQ_PSN | TIMEOUT | RETRY | RNR_RETRY | MAX_RD, live),
            Dct => return None, // it does not send
            XrcRecv => (SQ_PSN | TIMEOUT, live),
            _ => (SQ_PSN, live),
        },
        (Rts, Rts) if matches!(kind, Rc | Uc) => (0, live | SRC_PORT),
        (Rts | Sqd, Rts) => (0, live),
        (Rts, Sqd) => (0, SQD_EVENT),
        (Sqd, Sqd) => match kind {
            Rc => (0, PKEY | PORT | AV | TIMEOUT | RETRY | RNR_RETRY | MAX_RD | MAX_DEST_RD | live),
            XrcSend => (0, PKEY | PORT | AV | TIMEOUT | RETRY | RNR_RETRY | MAX_RD | live),
            XrcRecv => (0, PKEY | PORT | AV | TIMEOUT | MAX_DEST_RD | live),
            Uc => (0, PKEY | AV | live),
            Ud | Dci | Dct => (0, PKEY | live),
        },
        _ => return None,
    })
}

fn given(c: &Change) -> u32 {
    [
        c.access.is_some(),
        c.pkey_index.is_some(),
        c.port.is_some(),
        c.qkey.is_some(),
        c.av.is_some(),
        c.path_mtu.is_some(),
        c.dest_qpn.is_some(),
        c.rq_psn.is_some(),
        c.sq_psn.is_some(),
        c.max_rd_atomic.is_some(),
        c.max_dest_rd_atomic.is_some(),
        c.min_rnr_timer.is_some(),
        c.timeout.is_some(),
        c.retry_cnt.is_some(),
        c.rnr_retry.is_some(),
        c.sqd_event.is_some(),
        c.src_port.is_some(),
    ]
    .into_iter()
    .enumerate()
    .fold(0, |mask, (bit, is)| mask | u32::from(is) << bit)
}

fn name_of_lowest(mask: u32) -> &'static str {
    NAMES[mask.trailing_zeros() as usize]
}

/// Checks a move and its attributes.
///
/// # Errors
/// [`NicError::State`], [`NicError::Missing`], [`NicError::Superfluous`], and
/// [`NicError::Attribute`] for a value out of range.
pub(crate) fn check(
    qpn: Qpn,
    kind: QpType,
    from: QpState,
    to: QpState,
    change: &Change,
) -> Result<(), NicError> {
    let qpn = qpn.0;
    let (needed, taken) = rule(kind, from, to).ok_or(NicError::State { qpn, from, to })?;
    let given = given(change);
    if needed & !given != 0 {
        return Err(NicError::Missing { qpn, from, to, what: name_of_lowest(needed & !given) });
    }
    let odd = given & !(needed | taken);
    if odd != 0 {
        return Err(NicError::Superfluous { qpn, from, to, what: name_of_lowest(odd) });
    }
    in_range(change)
}

fn in_range(c: &Change) -> Result<(), NicError> {
    let within = |what, value: Option<u64>, range: std::ops::RangeInclusive<u64>, must| match value
    {
        Some(value) if !range.contains(&value) => Err(NicError::Attribute { what, value, must }),
        _ => Ok(()),
    };
    let byte = |value: Option<u8>| value.map(u64::from);
    let most = u64::from(MAX_RD_ATOMIC);
    within("pkey index", c.pkey_index.map(u64::from), 0..=0, "0: there is one partition")?;
    within("port", byte(c.port), 1..=1, "1: there is one port")?;
    within("UDP source port", c.src_port.map(u64::from), 1..=0xffff, "1..=65535")?;
    within("destination QPN", c.dest_qpn.map(|q| q.0.into()), 0..=Qpn::MAX.into(), "24 bits")?;
    within("max_rd_atomic", byte(c.max_rd_atomic), 0..=most, "0..=16")?;
    within("max_dest_rd_atomic", byte(c.max_dest_rd_atomic), 0..=most, "0..=16")?;
    within("min_rnr_timer", byte(c.min_rnr_timer), 0..=31, "0..=31")?;
    within("timeout", byte(c.timeout), 0..=31, "0..=31")?;
    within("retry_cnt", byte(c.retry_cnt), 0..=7, "0..=7")?;
    within("rnr_retry", byte(c.rnr_retry), 0..=7, "0..=7")
}

impl Attributes {
    /// Takes what is given.
    pub(crate) fn apply(&mut self, c: &Change) {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut self.access, c.access);
        set(&mut self.qkey, c.qkey);
        set(&mut self.av, c.av);
        set(&mut self.path_mtu, c.path_mtu);
        set(&mut self.dest_qpn, c.dest_qpn);
        set(&mut self.rq_psn, c.rq_psn);
        set(&mut self.sq_psn, c.sq_psn);
        set(&mut self.max_rd_atomic, c.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, c.max_dest_rd_atomic);
        set(&mut self.min_rnr_timer, c.min_rnr_timer);
        set(&mut self.timeout, c.timeout);
        set(&mut self.retry_cnt, c.retry_cnt);
        set(&mut self.rnr_retry, c.rnr_retry);
        set(&mut self.sqd_event, c.sqd_event);
        self.src_port = c.src_port.or(self.src_port);
    }
}

impl From<Attributes> for Change {
    fn from(a: Attributes) -> Self {
        Self {
            access: Some(a.access),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(a.qkey),
            av: Some(a.av),
            path_mtu: Some(a.path_mtu),
            dest_qpn: Some(a.dest_qpn),
            rq_psn: Some(a.rq_psn),
            sq_psn: Some(a.sq_psn),
            max_rd_atomic: Some(a.max_rd_atomic),
            max_dest_rd_atomic: Some(a.max_dest_rd_atomic),
            min_rnr_timer: Some(a.min_rnr_timer),
            timeout: Some(a.timeout),
            retry_cnt: Some(a.retry_cnt),
            rnr_retry: Some(a.rnr_retry),
            sqd_event: Some(a.sqd_event),
            src_port: a.src_port,
        }
    }
}

/// The steps from RESET to RTS, with what each needs.
pub(crate) fn ladder(kind: QpType, connection: &Connection) -> [(QpState, Change); 3] {
    [QpState::Init, QpState::Rtr, QpState::Rts].map(|to| (to, connection.change(kind, to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_nic::QpAddress;

    const STATES: [QpState; 6] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

    const KINDS: [QpType; 5] =
        [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

    fn connection() -> Connection {
        let nic = NicAddress::InProcess(1);
        let (qpn, psn, rd_atomic) = (Qpn(1), Psn::new(7), MAX_RD_ATOMIC);
        let end = QpAddress { nic, qpn, psn, mtu: Mtu::MAX, rd_atomic };
        Connection::new(end, end)
    }

    #[test]
    fn the_ladder_is_accepted_for_all_types_and_each_rung_is_needed() {
        for kind in KINDS {
            let mut from = QpState::Reset;
            for (to, change) in ladder(kind, &connection()) {
                check(Qpn(1), kind, from, to, &change).unwrap();
                let (needed, _) = rule(kind, from, to).unwrap();
                assert_eq!(given(&change), needed, "{kind:?} {to:?}");
                let none = check(Qpn(1), kind, from, to, &Change::default());
                assert_eq!(needed != 0, matches!(none, Err(NicError::Missing { .. })));
                from = to;
            }
        }
    }

    #[test]
    fn what_is_missing_or_superfluous_is_named() {
        let (rc, no) = (QpType::Rc, Change::default());
        let init = Change { pkey_index: Some(0), access: Some(Access::ALL), ..no };
        let refused = check(Qpn(1), rc, QpState::Reset, QpState::Init, &init);
        assert!(matches!(refused, Err(NicError::Missing { what: "port", .. })));
        let odd = Change { port: Some(1), qkey: Some(1), ..init };
        let refused = check(Qpn(1), rc, QpState::Reset, QpState::Init, &odd);
        assert!(matches!(refused, Err(NicError::Superfluous { what: "qkey", .. })));
        let bad = Change { port: Some(2), ..init };
        let refused = check(Qpn(1), rc, QpState::Reset, QpState::Init, &bad);
        assert!(matches!(refused, Err(NicError::Attribute { what: "port", value: 2, .. })));
    }

    #[test]
    fn what_was_set_is_in_force_until_it_is_set_anew() {
        let mut attributes = Attributes::default();
        let all = Change { sqd_event: Some(true), ..connection().with };
        attributes.apply(&all);
        assert_eq!(Change::from(attributes), all);
        attributes.apply(&Change { timeout: Some(3), ..Change::default() });
        assert_eq!(Change::from(attributes), Change { timeout: Some(3), ..all });
    }

    #[test]
    fn moves_that_there_are_not_are_refused_for_all_types() {
        use QpState::*;
        let moves = [
            (Reset, Init),
            (Init, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Sqd),
            (Sqd, Rts),
        ];
        for kind in KINDS {
            for from in STATES {
                for to in STATES {
                    let there_is = moves.contains(&(from, to)) || matches!(to, Reset | Err);
                    assert_eq!(rule(kind, from, to).is_some(), there_is, "{from:?} {to:?}");
                }
            }
        }
    }
}

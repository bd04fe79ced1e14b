//! What a recording holds, one after the other, as postcard writes it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::link::{Carries, Share};
use crate::objects::events::Event as Async;
use bellpush_nic::{Access, Change, Mr, Order, QpState, QpType};
use bellpush_wire::roce::{Envelope, Fields};
use bellpush_wire::umr::Part;
use bellpush_wire::{Iova, Lkey, Rkey};

/// Begins a recording; the version is the last character before the line's end. 2: of a packet whose payload is left
/// out there is no hash.
pub(super) const MAGIC: &[u8; 18] = b"bellpush-record 2\n";

/// What the NIC was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Where random numbers begin.
    pub seed: u64,
    /// Whether payload is there whole.
    pub whole: bool,
    pub address: IpAddr,
    pub mtu: usize,
    pub src_port: u16,
    pub carries: Carries,
    pub has_icrc: bool,
    pub joins: bool,
    pub share: Option<Share>,
    /// Text of the fault script, and which of the process's devices this is.
    pub script: Option<(String, usize)>,
    pub adversary: Option<String>,
}

#[cfg(test)]
impl Header {
    /// Of a NIC that there is none of.
    pub(crate) fn of_tests() -> Self {
        Self {
            seed: 1,
            whole: false,
            address: [127, 0, 0, 1].into(),
            mtu: 4096,
            src_port: 4791,
            carries: Carries::ALL,
            has_icrc: true,
            joins: false,
            share: None,
            script: None,
            adversary: None,
        }
    }
}

/// A view: where it lies in memory that is hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Number of the memory in the recording.
    pub region: u32,
    /// The memory's address and length.
    pub addr: u64,
    pub bytes: u64,
    /// The view in it.
    pub offset: u64,
    pub len: u64,
}

/// What a program asks of the NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    Pd,
    Cq(CqCall),
    ResizeCq {
        cq: u32,
        ring: Place,
        entry_bytes: u64,
    },
    /// A CQ's consumer is told from now on, and rings this page.
    Notify {
        cq: u32,
        uar: Place,
    },
    Moderate {
        cq: u32,
        count: u16,
        period_us: u16,
    },
    Srq(SrqCall),
    ArmLimit {
        srq: u32,
        limit: u32,
    },
    CloseSrq {
        srq: u32,
    },
    Qp(Box<QpCall>),
    Modify {
        qpn: u32,
        to: QpState,
        change: Box<Change>,
    },
    Fail {
        qpn: u32,
    },
    DestroyQp {
        qpn: u32,
    },
    Register(RegisterCall),
    Deregister(RegionCall),
    Mkey {
        pd: u32,
        octowords: u64,
        remote_invalidate: bool,
        tag: Option<u8>,
    },
    DestroyMkey {
        key: u32,
    },
    /// A key that stands for parts of regions.
    Parts {
        pd: u32,
        iova: u64,
        access: Access,
        tag: Option<u8>,
        parts: Vec<Part>,
    },
    Reregister {
        region: RegionCall,
        pd: Option<u32>,
        /// Memory: number, address, length, address in WQEs.
        memory: Option<(u32, u64, u64, u64)>,
        access: Option<Access>,
    },
    Xrcd {
        number: u32,
    },
    XrcRecv {
        xrcd: u32,
    },
    DcKey {
        qpn: u32,
        key: u64,
    },
    Streams {
        qpn: u32,
        most_in_error: u32,
    },
    ResetStream {
        qpn: u32,
        stream: u16,
    },
    /// Somebody has management datagrams told.
    TellMads,
    Mad {
        to: IpAddr,
        bytes: Vec<u8>,
    },
    Notice(Notice),
    Port {
        up: bool,
    },
    Quiesce,
    /// A protection domain, CQ or SRQ is gone.
    Gone {
        number: u32,
    },
    /// Something that a recording has no words for.
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CqCall {
    pub ring: Place,
    pub dbr: Place,
    pub uar: Place,
    pub notify: bool,
    pub entry_bytes: u64,
    pub collapsed: bool,
    pub overrun_ignored: bool,
    pub timestamp: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SrqCall {
    pub pd: u32,
    pub ring: Place,
    pub stride_log: u32,
    pub dbr: Place,
    pub limit: u32,
    pub sort: SrqSort,
}

/// What a shared receive queue is for; CQs and domains by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SrqSort {
    Plain,
    Cyclic,
    Xrc { xrcd: u32, cq: u32, uidx: u32 },
    Tags { cq: u32, uidx: u32, tags: u32, cyclic: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QpCall {
    pub kind: QpType,
    pub pd: u32,
    pub send_cq: u32,
    pub recv_cq: Option<u32>,
    pub srq: Option<u32>,
    pub uidx: u32,
    pub sq_blocks: u32,
    pub rq_wqes: u32,
    pub rq_sges: u32,
    pub rnr_retry: u8,
    pub ack_timeout: u8,
    pub sq: Place,
    pub rq: Place,
    pub rq_stride_log: u32,
    pub dbr: Place,
    pub uar: Place,
    pub order: Order,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegisterCall {
    pub pd: u32,
    pub region: u32,
    pub addr: u64,
    pub bytes: u64,
    pub iova: u64,
    pub access: Access,
    pub tag: Option<u8>,
}

/// A region that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegionCall {
    pub lkey: u32,
    pub rkey: u32,
    pub iova: u64,
    pub bytes: u64,
}

impl From<Mr> for RegionCall {
    fn from(mr: Mr) -> Self {
        Self { lkey: mr.lkey.0, rkey: mr.rkey.0, iova: mr.iova.0, bytes: mr.bytes }
    }
}

impl From<RegionCall> for Mr {
    fn from(mr: RegionCall) -> Self {
        let (lkey, rkey, iova) = (Lkey(mr.lkey), Rkey(mr.rkey), Iova(mr.iova));
        Self { lkey, rkey, iova, bytes: mr.bytes }
    }
}

/// As [`crate::link::Notice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Notice {
    Manages,
    Offers(u64),
    Withdraws(u64),
}

impl From<crate::link::Notice> for Notice {
    fn from(notice: crate::link::Notice) -> Self {
        match notice {
            crate::link::Notice::Manages => Self::Manages,
            crate::link::Notice::Offers(service) => Self::Offers(service),
            crate::link::Notice::Withdraws(service) => Self::Withdraws(service),
        }
    }
}

impl From<Notice> for crate::link::Notice {
    fn from(notice: Notice) -> Self {
        match notice {
            Notice::Manages => Self::Manages,
            Notice::Offers(service) => Self::Offers(service),
            Notice::Withdraws(service) => Self::Withdraws(service),
        }
    }
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done,
    Refused,
    /// Number of a new object.
    Number(u32),
    /// Local and remote key of a new region.
    Keys(u32, u32),
}

/// What is there of bytes that are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    pub len: u32,
    pub hash: u64,
}

/// What happened. Numbers count from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event<'a> {
    /// A call begins.
    Call(Call),
    /// It ends.
    Done(Outcome),
    /// A step of the engine begins, at that time of its clock.
    Step {
        now_ns: u64,
    },
    /// The NIC loaded a word that was another than when it was loaded last: the `nth` load of it in this step or call.
    Word {
        region: u32,
        offset: u64,
        bytes: u8,
        nth: u8,
        value: u64,
    },
    /// The NIC read bytes.
    Read {
        region: u32,
        offset: u64,
        #[serde(serialize_with = "at_once")]
        bytes: &'a [u8],
    },
    ReadHashed {
        region: u32,
        offset: u64,
        tail: Tail,
    },
    /// The NIC wrote bytes.
    Wrote {
        region: u32,
        offset: u64,
        #[serde(serialize_with = "at_once")]
        bytes: &'a [u8],
    },
    WroteHashed {
        region: u32,
        offset: u64,
        tail: Tail,
    },
    /// The NIC changed a word: what it was. Adds `operands[0]`; or compares with it and puts the other there.
    Changed {
        region: u32,
        offset: u64,
        add: bool,
        operands: [u64; 2],
        old: u64,
    },
    /// The access before this was refused: memory that is not there.
    Faulted {
        region: u32,
        offset: u64,
        len: u64,
    },
    /// A packet came: BTH to ICRC, or its headers, [`super::HEAD`] bytes of its payload, and how many follow: their hash
    /// stands where they are written.
    Came {
        envelope: Envelope,
        #[serde(serialize_with = "at_once")]
        bytes: &'a [u8],
        payload: Option<u32>,
        sound: bool,
    },
    /// The link took a packet.
    Went {
        to: IpAddr,
        fields: Fields,
        #[serde(serialize_with = "at_once")]
        bytes: &'a [u8],
        payload: Option<u32>,
    },
    /// It took no more.
    Full {
        left: u32,
    },
    /// Whether the link's port was up when the NIC looked, if it was otherwise before.
    Up(bool),
    /// Whether packets may leave from a UDP port.
    Port {
        port: u16,
        granted: bool,
    },
    /// The NIC told of an asynchronous event.
    Told(Async),
    /// The device was closed: nothing follows.
    Closed,
}

/// As bytes: a slice would go one by one.
fn at_once<S: serde::Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

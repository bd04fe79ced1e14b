//! Packet links: how a software NIC's packets reach other NICs.
//!
//! A link carries what UDP would carry: BTH to ICRC. It loses, and may duplicate or reorder;
//! transports above make up for that. An engine builds packets in a [`TxBatch`], [`Link::send`]
//! takes from its front as many as go now, and [`Link::recv`] hands out what has arrived. Nothing
//! is allocated for a packet, and nothing waits.

mod batch;
mod capture;
mod fault;
mod joint;
pub mod pcap;
pub(crate) mod place;
pub(crate) mod port;
mod shm;
mod udp;

use std::net::IpAddr;

pub use batch::{Outgoing, Run, TxBatch};
pub use capture::Captured;
pub use fault::{FaultCounters, Faults, FaultsError, Faulty};
pub(crate) use fault::{Rng, units};
pub use joint::{JointLink, Share, is_this_user};
pub use place::{Apart, Built, InPlace, Room, Shared};
pub use shm::{STALL_NS, ShmLink, ShmNet, ShmRest};
pub use udp::{UdpLink, interface_name};

use bellpush_wire::roce::{Envelope, Fields};
use serde::{Deserialize, Serialize};

/// How many packets one counts as that is handed out where it lies ([`Link::recv_in_place`]): who sent them waits for
/// acknowledgements, which the send side builds, when a quarter of a window is left to it at the latest.
pub const IN_PLACE: usize = 8;

/// A packet link as one NIC sees it. Not shared: it is owned by one engine.
///
/// `now_ns` is the engine's clock, which never goes back.
pub trait Link: Send {
    /// The NIC's address on the link.
    fn address(&self) -> IpAddr;

    /// Longest packet in bytes, BTH to ICRC.
    fn mtu(&self) -> usize;

    /// UDP source port of what this NIC sends, unless packets choose theirs; part of the ICRC.
    fn src_port(&self) -> u16;

    /// Which header fields of a packet the link sends as they are asked for.
    fn carries(&self) -> Carries;

    /// What a packet goes with that asks for these fields.
    fn fields(&self, wanted: &Fields) -> Fields {
        self.carries().of(wanted, self.src_port())
    }

    /// Has packets that ask for this source port leave from it, until [`Link::leave_port`] was
    /// called as often.
    ///
    /// # Errors
    /// [`LinkError::Port`], [`LinkError::System`].
    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        if self.carries().src_port { Ok(()) } else { Err(LinkError::Port { port }) }
    }

    /// Takes [`Link::take_port`] back.
    fn leave_port(&mut self, port: u16) {
        let _ = port;
    }

    /// Whether packets need an ICRC: to be computed before sending, to be checked on receipt.
    /// Memory does not corrupt, so that a shared-memory link says no and its packets end in zeros.
    fn has_icrc(&self) -> bool {
        true
    }

    /// Whether packets for one peer cost less when they are given to [`Link::send`] together.
    fn joins(&self) -> bool {
        false
    }

    /// Sends packets from the front of the batch and takes them out of it. Returns how many; what
    /// is left did not fit, and is to be sent later. A packet to an address that nobody has is
    /// taken, lost and counted, as a wire would.
    ///
    /// # Errors
    /// [`LinkError`] when the link itself has failed. What was in the batch may be lost; a later
    /// call may succeed.
    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError>;

    /// Whether it has packets built where they lie, and hands them out there: [`Link::build`] and
    /// [`Link::recv_in_place`] are worth a call. A link that does something to packets of another says no: it
    /// has to see them whole.
    fn is_in_place(&self) -> bool {
        false
    }

    /// Builds a packet to `to` right where the link's next one lies, and sends it: `fill` writes its
    /// payload there, once at most, or says that it cannot. Only while no packet of a batch waits, or
    /// it would overtake that. Whoever has built some calls [`Link::wake`] before it rests.
    ///
    /// # Errors
    /// As [`Link::send`].
    fn build(
        &mut self,
        to: IpAddr,
        fields: &Fields,
        packet: Apart<'_>,
        fill: &mut dyn FnMut(Room<'_>) -> bool,
    ) -> Result<Built, LinkError> {
        let _ = (to, fields, packet, fill);
        Ok(Built::Elsewhere)
    }

    /// Has those look who rest and whom packets were built for.
    ///
    /// # Errors
    /// As [`Link::send`].
    fn wake(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Hands out at most `most` packets that have arrived, and returns how many. A link that has looked at so many, and
    /// has dropped them all, returns 1: there may be more behind them.
    ///
    /// # Errors
    /// As [`Link::send`].
    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError>;

    /// As [`Link::recv`], with long packets where they lie, if the link can. Each of those counts as
    /// [`IN_PLACE`] of `most`.
    ///
    /// # Errors
    /// As [`Link::send`].
    fn recv_in_place(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&InPlace<'_>),
    ) -> Result<usize, LinkError> {
        self.recv(now_ns, most, &mut |&Received { ref envelope, bytes, checked }| {
            each(&InPlace { envelope, head: bytes, shared: None, checked });
        })
    }

    /// The NIC's part of what processes at one address share; `None` of a link whose address is the
    /// NIC's alone.
    fn share(&self) -> Option<Share> {
        None
    }

    /// Hears which messages to queue pair 1 the NIC wants, where others at its address want some.
    fn tell(&mut self, notice: Notice) {
        let _ = notice;
    }

    /// When [`Link::recv`] or [`Link::send`] is to be called although nothing arrives and nothing
    /// is sent: the link holds packets back until then. Whoever naps must wake up for it.
    fn poll_at(&self) -> Option<u64> {
        None
    }

    /// Whether it still holds packets: sent ones that are yet to leave, or received ones that are yet to be handed on.
    /// Without a word of its own, a link holds some while it wants to be looked at ([`Link::poll_at`]).
    fn holds(&self) -> bool {
        self.poll_at().is_some()
    }

    /// Whether the port is up: its network interface, or what stands for it. Cheap; looked at
    /// every few milliseconds at most.
    fn is_up(&mut self) -> bool {
        true
    }

    /// What the link has done.
    fn counters(&self) -> LinkCounters;

    /// What a link with faults has done to packets.
    fn faults(&self) -> Option<FaultCounters> {
        None
    }

    /// One line for people: kind, address, which modes are in force, sizes of buffers.
    fn describe(&self) -> String;
}

/// In an implementation of [`Link`] by one that does something to packets of another, `inner`: what
/// it leaves to that one.
macro_rules! forward_to_inner {
    () => {
        $crate::link::forward_shape_to_inner!();

        fn take_port(&mut self, port: u16) -> Result<(), $crate::link::LinkError> {
            self.inner.take_port(port)
        }

        fn is_up(&mut self) -> bool {
            self.inner.is_up()
        }
    };
}
pub(crate) use forward_to_inner;

/// The part of [`forward_to_inner`] that says nothing of what happens on the link.
macro_rules! forward_shape_to_inner {
    () => {
        fn address(&self) -> std::net::IpAddr {
            self.inner.address()
        }

        fn mtu(&self) -> usize {
            self.inner.mtu()
        }

        fn src_port(&self) -> u16 {
            self.inner.src_port()
        }

        fn carries(&self) -> $crate::link::Carries {
            self.inner.carries()
        }

        fn fields(&self, wanted: &bellpush_wire::roce::Fields) -> bellpush_wire::roce::Fields {
            self.inner.fields(wanted)
        }

        fn leave_port(&mut self, port: u16) {
            self.inner.leave_port(port);
        }

        fn has_icrc(&self) -> bool {
            self.inner.has_icrc()
        }

        fn joins(&self) -> bool {
            self.inner.joins()
        }

        fn share(&self) -> Option<$crate::link::Share> {
            self.inner.share()
        }

        fn tell(&mut self, notice: $crate::link::Notice) {
            self.inner.tell(notice);
        }
    };
}
pub(crate) use forward_shape_to_inner;

impl Link for Box<dyn Link> {
    fn address(&self) -> IpAddr {
        (**self).address()
    }

    fn mtu(&self) -> usize {
        (**self).mtu()
    }

    fn src_port(&self) -> u16 {
        (**self).src_port()
    }

    fn carries(&self) -> Carries {
        (**self).carries()
    }

    fn fields(&self, wanted: &Fields) -> Fields {
        (**self).fields(wanted)
    }

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        (**self).take_port(port)
    }

    fn leave_port(&mut self, port: u16) {
        (**self).leave_port(port);
    }

    fn has_icrc(&self) -> bool {
        (**self).has_icrc()
    }

    fn joins(&self) -> bool {
        (**self).joins()
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        (**self).send(now_ns, batch)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        (**self).recv(now_ns, most, each)
    }

    fn is_in_place(&self) -> bool {
        (**self).is_in_place()
    }

    fn build(
        &mut self,
        to: IpAddr,
        fields: &Fields,
        packet: Apart<'_>,
        fill: &mut dyn FnMut(Room<'_>) -> bool,
    ) -> Result<Built, LinkError> {
        (**self).build(to, fields, packet, fill)
    }

    fn wake(&mut self) -> Result<(), LinkError> {
        (**self).wake()
    }

    fn recv_in_place(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&InPlace<'_>),
    ) -> Result<usize, LinkError> {
        (**self).recv_in_place(now_ns, most, each)
    }

    fn share(&self) -> Option<Share> {
        (**self).share()
    }

    fn tell(&mut self, notice: Notice) {
        (**self).tell(notice);
    }

    fn poll_at(&self) -> Option<u64> {
        (**self).poll_at()
    }

    fn holds(&self) -> bool {
        (**self).holds()
    }

    fn is_up(&mut self) -> bool {
        (**self).is_up()
    }

    fn counters(&self) -> LinkCounters {
        (**self).counters()
    }

    fn faults(&self) -> Option<FaultCounters> {
        (**self).faults()
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}

/// What a NIC wants of the messages to queue pair 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// It has a connection manager.
    Manages,
    /// Its connection manager takes requests for a service.
    Offers(u64),
    /// It takes them no more.
    Withdraws(u64),
}

/// Header fields that a link sends as the address vector says; the others go with the link's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields' own names")]
pub struct Carries {
    pub traffic_class: bool,
    pub hop_limit: bool,
    pub src_port: bool,
    pub flow_label: bool,
}

impl Carries {
    /// Every field.
    pub const ALL: Self =
        Self { traffic_class: true, hop_limit: true, src_port: true, flow_label: true };

    /// What a packet that asks for fields goes with, where the link's own source port is `port`. A
    /// hop limit of 0 asks for the usual one, as a route's would be.
    pub fn of(self, wanted: &Fields, port: u16) -> Fields {
        let own = Fields { src_port: port, ..Fields::default() };
        Fields {
            traffic_class: if self.traffic_class { wanted.traffic_class } else { 0 },
            hop_limit: if self.hop_limit && wanted.hop_limit > 0 {
                wanted.hop_limit
            } else {
                own.hop_limit
            },
            src_port: if self.src_port { wanted.src_port } else { port },
            flow_label: if self.flow_label { wanted.flow_label } else { 0 },
        }
    }
}

/// A packet that has arrived.
#[derive(Debug)]
pub struct Received<'a> {
    /// IP and UDP headers. Where the link does not see a field (a UDP socket shows neither IPv4's
    /// ID nor IPv6's flow label), it has the value of [`Envelope::new`].
    pub envelope: Envelope,
    /// BTH to ICRC. A private copy: nobody changes it any more.
    pub bytes: &'a [u8],
    /// Whether its ICRC was found right already; `false`: nobody has looked, or it was not.
    pub checked: bool,
}

/// What a link has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Packets handed to the wire.
    pub tx_packets: u64,
    /// Their bytes, BTH to ICRC.
    pub tx_bytes: u64,
    /// Packets taken and lost: nobody has the address, or the wire refused them.
    pub tx_lost: u64,
    /// Times that a send left packets in the batch.
    pub tx_full: u64,
    /// Packets handed out.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets that arrived malformed below BTH, or did not fit, and were dropped.
    pub rx_dropped: u64,
}

/// What can go wrong with a link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Another NIC, or another program, has the address.
    #[error("{addr} is in use: another NIC or program holds it on this link")]
    InUse {
        /// The address.
        addr: IpAddr,
    },
    /// No interface of this machine has the address.
    #[error("{addr} is not an address of this machine")]
    NotLocal {
        /// The address.
        addr: IpAddr,
    },
    /// Packets cannot leave from that UDP source port.
    #[error("packets cannot leave from UDP port {port}: a program holds it, or needs a right to")]
    Port {
        /// The port.
        port: u16,
    },
    /// All addresses of the range are taken.
    #[error("no free address among {range}")]
    NoneFree {
        /// The range.
        range: &'static str,
    },
    /// A name of a shared link that cannot be the name of a file.
    #[error("{name:?} cannot name a link: use letters, digits, '-' and '_'")]
    Name {
        /// The name.
        name: String,
    },
    /// What is there is not a link of this version.
    #[error("{path} is not a link of this version of bellpush")]
    Foreign {
        /// The file.
        path: String,
    },
    /// Nobody on the link could be asked for its memory.
    #[error(
        "{path}: no process on this link lets this one open its memory (/proc/PID/fd): it must have \
         the same user and PID namespace, and no capabilities that this one lacks"
    )]
    Unreachable {
        /// The file.
        path: String,
    },
    /// The link of this name is there, with the other choice.
    #[error("{path} is in use by NICs {} ICRC", if *.icrc { "with" } else { "without" })]
    OtherIcrc {
        /// The file.
        path: String,
        /// Whether those that use it have one.
        icrc: bool,
    },
    /// Corruption on a link whose packets have no ICRC.
    #[error("packets without ICRC must not be corrupted: nobody would notice")]
    NeedsIcrc,
    /// As many NICs as the link can have are on it.
    #[error("the link is full: it has {ports} NICs")]
    Full {
        /// How many it can have.
        ports: usize,
    },
    /// A call of the system failed.
    #[error("{call}: {source}")]
    System {
        /// What was called, and for what.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] bellpush_mem::MemError),
}

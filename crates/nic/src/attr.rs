//! What a queue pair is told when it changes state, and how a peer is addressed (`ibv_modify_qp`;
//! InfiniBand vol. 1, 10.3.1 and 11.2.5.2).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use crate::{Access, QpState};
use bellpush_wire::{Psn, Qpn};

/// Service of a queue pair (InfiniBand vol. 1, 9.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Sending end of an extended reliable connection (annex A14: XRC initiator).
    XrcSend,
    /// Receiving end: requests name the SRQ of its XRC domain that they are for (XRC target).
    XrcRecv,
    /// Initiator of dynamic connections: each WQE says which target it is for.
    Dci,
    /// Target of dynamic connections, of any initiator that has its key.
    Dct,
}

impl QpType {
    /// Whether requests are sent and acknowledged: RC, and the sending end of XRC.
    #[inline]
    pub fn is_reliable_requester(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::Dci)
    }

    /// Whether requests are received and acknowledged: RC, and the receiving end of XRC.
    #[inline]
    pub fn is_reliable_responder(self) -> bool {
        matches!(self, Self::Rc | Self::XrcRecv | Self::Dct)
    }
}

/// Path MTU: payload bytes of one packet, a power of two from 256 to 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u16"))]
pub struct Mtu(u16);

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self(256), Self(512), Self(1024), Self(2048), Self(4096)];
    /// The largest.
    pub const MAX: Self = Self(4096);

    /// The path MTU of that many bytes.
    pub fn new(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest path MTU of at most that many bytes.
    pub fn within(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rfind(|mtu| mtu.bytes() <= bytes)
    }

    /// Payload bytes of a full packet.
    #[inline]
    pub fn bytes(self) -> usize {
        self.0.into()
    }

    /// The part of a message of `bytes` bytes that its packet `index` carries.
    #[inline]
    pub fn part(self, index: u32, bytes: u32) -> Range<usize> {
        let (all, start) = (bytes as usize, index as usize * self.bytes());
        start.min(all)..(start + self.bytes()).min(all)
    }

    /// Packets of a message; an empty one takes one as well.
    #[inline]
    pub fn packets(self, bytes: u32) -> u32 {
        bytes.div_ceil(self.0.into()).max(1)
    }
}

impl TryFrom<u16> for Mtu {
    type Error = &'static str;

    fn try_from(bytes: u16) -> Result<Self, Self::Error> {
        Self::new(bytes.into()).ok_or("no path MTU has so many bytes")
    }
}

/// A NIC on its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NicAddress {
    /// Number of a NIC on the in-process link.
    InProcess(u64),
    /// Address of a NIC that sends packets over IP (RoCEv2); its GID is the address, IPv4-mapped if
    /// need be.
    Ip(IpAddr),
    /// A port on an InfiniBand subnet.
    Lid {
        /// Local identifier, given by the subnet manager; 0 for a port that is reached by GID alone.
        lid: u16,
        /// Its GID, in network order: 8 bytes of subnet prefix, 8 of port GUID.
        gid: [u8; 16],
    },
}

impl fmt::Display for NicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProcess(number) => write!(f, "in-process NIC {number}"),
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Lid { lid, gid } => write!(f, "LID {lid} (GID {})", Ipv6Addr::from(*gid)),
        }
    }
}

/// What a peer needs to reach a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QpAddress {
    /// The NIC on its link.
    pub nic: NicAddress,
    /// The queue pair on that NIC.
    pub qpn: Qpn,
    /// First PSN that the queue pair will send; drawn at random for each connection, so that
    /// packets of an earlier one do not fit.
    pub psn: Psn,
    /// Largest path MTU that its NIC can take.
    pub mtu: Mtu,
    /// READs and atomics of its peer's that it answers at a time, at most [`MAX_RD_ATOMIC`].
    pub rd_atomic: u8,
}

/// READs and atomics outstanding on a connection at most, each way.
pub const MAX_RD_ATOMIC: u8 = 16;

/// Address vector: the path to a peer (InfiniBand vol. 1, 11.2.2.1; annex A17.4 for RoCEv2).
///
/// Packets go with its fields as far as the link can have them so, see
/// `SoftNic::carries`. The UDP source port follows from the
/// flow label, or, where that is 0, from the two queue pairs' numbers (annex A17.4.5.2), unless
/// [`Change::src_port`] names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AddressVector {
    /// The peer's NIC.
    pub nic: NicAddress,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Time to live, or hop limit; 0 for the usual one.
    pub hop_limit: u8,
    /// Type of service, or traffic class.
    pub traffic_class: u8,
}

impl AddressVector {
    /// A path with a hop limit of 64.
    pub fn to(nic: NicAddress) -> Self {
        Self { nic, flow_label: 0, hop_limit: 64, traffic_class: 0 }
    }
}

/// Attributes of a state change; what is `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Change {
    /// What peers may do. [`Access::local_write`] is not looked at.
    pub access: Option<Access>,
    /// Index into the partition table, of which entry 0 (0xffff) is the only one.
    pub pkey_index: Option<u16>,
    /// Physical port, from 1.
    pub port: Option<u8>,
    /// Queue key of datagrams.
    pub qkey: Option<u32>,
    /// Path to the peer.
    pub av: Option<AddressVector>,
    /// Path MTU.
    pub path_mtu: Option<Mtu>,
    /// The peer's queue pair.
    pub dest_qpn: Option<Qpn>,
    /// First PSN expected.
    pub rq_psn: Option<Psn>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// READs and atomics that may be outstanding here as requester.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// Code of the pause that RNR NAKs ask for (InfiniBand vol. 1, table 45).
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout: 4.096 µs · 2^n; 0 never.
    pub timeout: Option<u8>,
    /// How often what was not acknowledged is sent again (0..=7).
    pub retry_cnt: Option<u8>,
    /// How often it is tried again after RNR NAKs (0..=6; 7: without end).
    pub rnr_retry: Option<u8>,
    /// Moving to SQD: report when the send queue is drained.
    pub sqd_event: Option<bool>,
    /// UDP source port of a connection's packets (RC and UC, in RTS), until RESET.
    pub src_port: Option<u16>,
}

/// What a connection is made of, beyond the two addresses; [`Change`]s for each step follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// This end.
    pub local: QpAddress,
    /// The other end.
    pub peer: QpAddress,
    /// Attributes that the addresses do not give; what is `None` has [`Connection::new`]'s value.
    pub with: Change,
}

impl Connection {
    /// All access, as many READs and atomics as the end that answers them takes, a local ACK timeout
    /// of 67 ms, 7 retries, RNR without end.
    pub fn new(local: QpAddress, peer: QpAddress) -> Self {
        let with = Change {
            access: Some(Access::ALL),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(0),
            av: Some(AddressVector::to(peer.nic)),
            path_mtu: Some(local.mtu.min(peer.mtu)),
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            sq_psn: Some(local.psn),
            max_rd_atomic: Some(peer.rd_atomic.min(MAX_RD_ATOMIC)),
            max_dest_rd_atomic: Some(local.rd_atomic.min(MAX_RD_ATOMIC)),
            min_rnr_timer: Some(1),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sqd_event: None,
            src_port: None,
        };
        Self { local, peer, with }
    }

    /// The attributes that a queue pair of type `kind` must be given to enter a state.
    pub fn change(&self, kind: QpType, to: QpState) -> Change {
        let (all, requester) = (self.with, kind.is_reliable_requester());
        let responder = kind.is_reliable_responder();
        let connected = kind != QpType::Ud;
        let dynamic = matches!(kind, QpType::Dci | QpType::Dct);
        let no = Change::default();
        match to {
            QpState::Init => Change {
                access: all.access.filter(|_| connected && kind != QpType::Dci),
                pkey_index: all.pkey_index,
                port: all.port,
                qkey: all.qkey.filter(|_| !connected),
                ..no
            },
            QpState::Rtr if connected => Change {
                av: all.av.filter(|_| kind != QpType::Dci),
                path_mtu: all.path_mtu,
                dest_qpn: all.dest_qpn.filter(|_| !dynamic),
                rq_psn: all.rq_psn.filter(|_| !dynamic),
                max_dest_rd_atomic: all.max_dest_rd_atomic.filter(|_| responder && !dynamic),
                min_rnr_timer: all.min_rnr_timer.filter(|_| responder),
                ..no
            },
            QpState::Rts => Change {
                sq_psn: all.sq_psn,
                max_rd_atomic: all.max_rd_atomic.filter(|_| requester),
                timeout: all.timeout.filter(|_| requester || responder),
                retry_cnt: all.retry_cnt.filter(|_| requester),
                rnr_retry: all.rnr_retry.filter(|_| requester),
                ..no
            },
            _ => no,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_reads_are_outstanding_than_the_end_that_answers_takes() {
        let nic = NicAddress::InProcess(1);
        let end = |rd_atomic| {
            let (qpn, psn) = (Qpn(1), Psn::new(7));
            QpAddress { nic, qpn, psn, mtu: Mtu::MAX, rd_atomic }
        };
        for (local, peer, sends, answers) in [(16, 16, 16, 16), (8, 1, 1, 8), (0, 255, 16, 0)] {
            let with = Connection::new(end(local), end(peer)).with;
            assert_eq!((with.max_rd_atomic, with.max_dest_rd_atomic), (Some(sends), Some(answers)));
        }
    }

    /// Names of the attributes that are there.
    fn named(change: &Change) -> Vec<String> {
        let text = format!("{change:?}");
        let fields = text.split(", ").filter(|field| field.contains(": Some("));
        let name = |field: &str| field.split(':').next().unwrap().trim().to_owned();
        fields.map(|field| name(field.trim_start_matches("Change { "))).collect()
    }

    #[test]
    fn each_state_wants_what_its_type_has() {
        let end = QpAddress {
            nic: NicAddress::InProcess(1),
            qpn: Qpn(1),
            psn: Psn::new(7),
            mtu: Mtu::MAX,
            rd_atomic: 16,
        };
        let connection = Connection::new(end, end);
        let (plain, keyed) = ("access pkey_index port", "pkey_index port qkey");
        let to = "av path_mtu dest_qpn rq_psn";
        let answers = "max_dest_rd_atomic min_rnr_timer";
        let asks = "sq_psn max_rd_atomic timeout retry_cnt rnr_retry";
        use QpType::*;
        // InfiniBand vol. 1, 11.2.5.2, and annex A14; dynamic connections as mlx5 has them.
        for (kind, init, rtr, rts) in [
            (Rc, plain, format!("{to} {answers}"), asks),
            (Uc, plain, to.into(), "sq_psn"),
            (Ud, keyed, String::new(), "sq_psn"),
            (XrcSend, plain, to.into(), asks),
            (XrcRecv, plain, format!("{to} {answers}"), "sq_psn timeout"),
            (Dci, "pkey_index port", "path_mtu".into(), asks),
            (Dct, plain, "av path_mtu min_rnr_timer".into(), "sq_psn timeout"),
        ] {
            for (state, want) in [
                (QpState::Init, init),
                (QpState::Rtr, &rtr),
                (QpState::Rts, rts),
                (QpState::Err, ""),
            ] {
                let change = connection.change(kind, state);
                let want: Vec<&str> = want.split_whitespace().collect();
                assert_eq!(named(&change), want, "{kind:?} to {state:?}");
            }
        }
        assert_eq!(connection.change(Ud, QpState::Rtr), Change::default());
        assert_eq!(end.nic.to_string(), "in-process NIC 1");
    }

    #[test]
    fn packets_carry_a_message_part_by_part() {
        let mtu = Mtu::new(1024).unwrap();
        let parts = [0, 1, 2, 3].map(|index| mtu.part(index, 2500));
        assert_eq!(parts, [0..1024, 1024..2048, 2048..2500, 2500..2500]);
        assert_eq!(
            (mtu.part(0, 0), mtu.part(0, 1024), mtu.part(1, 1024)),
            (0..0, 0..1024, 1024..1024)
        );
    }

    #[test]
    fn messages_take_as_many_packets_as_their_bytes_need() {
        let mtu = Mtu::new(1024).unwrap();
        assert_eq!([0, 1, 1024, 1025, 1 << 31].map(|n| mtu.packets(n)), [1, 1, 1, 2, 1 << 21]);
        assert_eq!(Mtu::new(1000), None);
        assert_eq!(
            [255, 256, 1472, 9000].map(Mtu::within),
            [None, Mtu::new(256), Mtu::new(1024), Some(Mtu::MAX)]
        );
    }
}

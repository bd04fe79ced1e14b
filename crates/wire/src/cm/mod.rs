//! Messages of the connection manager: what two hosts say to each other over queue pair 1 before they
//! have a connection.
//!
//! The module follows the InfiniBand Architecture Specification vol. 1, chapter 12 (communication
//! management; tables of messages in 12.6 and 12.11), 13.4 (the header of a management datagram), and
//! annex A11 (the RDMA IP CM service). A message here is a datagram's payload: 24 bytes of header,
//! 232 of message.
//!
//! | file | what |
//! |---|---|
//! | `field` | fields of any number of bits, and structs made of them |
//! | `messages` | the messages |
//! | `ip` | service IDs and private data of the RDMA IP CM service |

mod field;
mod ip;
mod messages;

use std::fmt;

pub use ip::{IP_HEADER_BYTES, IpHeader, IpHeaderError, PortSpace};
pub use messages::{
    Drep, Dreq, Message, MessageKind, Mra, Path, Rej, Rep, Req, Rtu, SidrRep, SidrReq, reason,
    sidr_status, transport,
};

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;
/// The queue pair that management datagrams go to.
pub const GSI_QPN: u32 = 1;
/// Its queue key (InfiniBand vol. 1, 3.9.5.1).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Bytes of the header that all management datagrams have.
const HEADER_BYTES: usize = 24;
/// Bytes behind it.
const DATA_BYTES: usize = MAD_BYTES - HEADER_BYTES;

/// Version of the header.
const BASE_VERSION: u8 = 1;
/// Management class of communication management, and the version of its messages.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// Method `ComMgtSend`: the only one.
const METHOD: u8 = 0x03;

/// Reason why bytes are not a message. A receiver drops them without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadError {
    /// Not as long as a management datagram.
    Length(usize),
    /// Not a header of this version.
    Version(u8),
    /// Of another management class.
    Class {
        /// The class.
        class: u8,
        /// Its version.
        version: u8,
    },
    /// A method that the class does not have.
    Method(u8),
    /// A message that is not known: of path migration, for one.
    Attribute(u16),
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(n) => write!(f, "a management datagram of {n} bytes, not {MAD_BYTES}"),
            Self::Version(n) => write!(f, "header version {n} is not known"),
            Self::Class { class, version } => {
                write!(
                    f,
                    "management class {class:#04x}, version {version}, is not communication management"
                )
            }
            Self::Method(n) => write!(f, "method {n:#04x} is not ComMgtSend"),
            Self::Attribute(n) => write!(f, "message {n:#06x} is not known"),
        }
    }
}

impl std::error::Error for MadError {}

/// A management datagram with a message of the connection manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mad {
    /// Transaction ID: whoever asks chooses it, whoever answers repeats it.
    pub transaction: u64,
    /// Attribute modifier: in REQ, REP and SIDR_REP, options of the vendor (ECE).
    pub modifier: u32,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// Reads a datagram's payload.
    ///
    /// # Errors
    /// [`MadError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let bytes: &[u8; MAD_BYTES] =
            bytes.try_into().map_err(|_| MadError::Length(bytes.len()))?;
        let [base, class, version, method, ..] = *bytes;
        if base != BASE_VERSION {
            return Err(MadError::Version(base));
        }
        if (class, version) != (CLASS, CLASS_VERSION) {
            return Err(MadError::Class { class, version });
        }
        if method != METHOD {
            return Err(MadError::Method(method));
        }
        let (head, data) = bytes.split_at(HEADER_BYTES);
        let attribute = field::get(head, 16, 0, 16) as u16;
        let data = data.try_into().expect("what is behind the header");
        let message = Message::parse(attribute, data).ok_or(MadError::Attribute(attribute))?;
        Ok(Self {
            transaction: field::get(head, 8, 0, 64),
            modifier: field::get(head, 20, 0, 32) as u32,
            message,
        })
    }

    /// The datagram's payload.
    pub fn emit(&self) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
        let (head, data) = bytes.split_at_mut(HEADER_BYTES);
        field::put(head, 8, 0, 64, self.transaction);
        field::put(head, 16, 0, 16, u64::from(self.message.kind().attribute()));
        field::put(head, 20, 0, 32, self.modifier.into());
        self.message.emit(data.try_into().expect("what is behind the header"));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A REQ as Linux's Soft-RoCE words it, field by field of table 106.
    fn req() -> Mad {
        let path = Path {
            local_lid: 0xffff,
            remote_lid: 0xfffe,
            local_gid: [0xa1; 16],
            remote_gid: [0xb2; 16],
            flow_label: 0x12345,
            rate: 3,
            traffic_class: 0x68,
            hop_limit: 64,
            sl: 5,
            subnet_local: true,
            ack_timeout: 17,
        };
        let message = Message::Req(Req {
            local_id: 0x0102_0304,
            service: PortSpace::Tcp.service(7174),
            guid: 0x0262_70ff_fe00_0001,
            qkey: 0,
            qpn: 0x00ab_cdef,
            responder_resources: 16,
            initiator_depth: 8,
            remote_timeout: 20,
            transport: transport::RC,
            flow_control: true,
            psn: 0x00fe_dcba,
            local_timeout: 19,
            retry: 7,
            pkey: 0xffff,
            mtu: 3,
            rnr_retry: 6,
            cm_retries: 15,
            srq: true,
            extended_transport: 0,
            path,
            private: std::array::from_fn(|i| i as u8),
        });
        Mad { transaction: 0x1122_3344_5566_7788, modifier: 0x99, message }
    }

    #[test]
    fn a_request_lies_as_the_tables_say() {
        let bytes = req().emit();
        let data = &bytes[HEADER_BYTES..];
        assert_eq!(bytes[..4], [1, 7, 2, 3]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788_u64.to_be_bytes());
        assert_eq!(bytes[16..18], [0, 0x10]);
        assert_eq!(data[..4], [1, 2, 3, 4]);
        assert_eq!(data[8..16], 0x0000_0000_0106_1c06_u64.to_be_bytes());
        assert_eq!(data[32..36], [0xab, 0xcd, 0xef, 16]);
        assert_eq!(data[39], 8);
        assert_eq!(data[43], 20 << 3 | 1);
        assert_eq!(data[44..48], [0xfe, 0xdc, 0xba, 19 << 3 | 7]);
        assert_eq!(data[48..52], [0xff, 0xff, 3 << 4 | 6, 15 << 4 | 1 << 3]);
        assert_eq!(data[52..57], [0xff, 0xff, 0xff, 0xfe, 0xa1]);
        assert_eq!(data[88..96], [0x12, 0x34, 0x50, 3, 0x68, 64, 5 << 4 | 1 << 3, 17 << 3]);
        assert!(data[96..140].iter().all(|&byte| byte == 0), "there is no alternate path");
        assert_eq!(data[140..143], [0, 1, 2]);
        assert_eq!(Mad::parse(&bytes), Ok(req()));
    }

    #[test]
    fn answers_lie_as_the_tables_say() {
        let emit =
            |message| Mad { transaction: 0, modifier: 0, message }.emit()[HEADER_BYTES..].to_vec();
        let rep = emit(Message::Rep(Rep {
            local_id: 1,
            remote_id: 2,
            qkey: 3,
            qpn: 0x04_0506,
            psn: 0x07_0809,
            responder_resources: 10,
            initiator_depth: 11,
            ack_delay: 12,
            failover: 1,
            flow_control: true,
            rnr_retry: 5,
            srq: true,
            guid: 13,
            private: [14; 196],
        }));
        assert_eq!(rep[12..16], [4, 5, 6, 0]);
        assert_eq!(rep[20..28], [7, 8, 9, 0, 10, 11, 12 << 3 | 1 << 1 | 1, 5 << 5 | 1 << 4]);
        assert_eq!((rep[35], rep[36]), (13, 14));
        let rej = emit(Message::Rej(Rej {
            local_id: 1,
            remote_id: 2,
            rejected: 1,
            info_bytes: 3,
            reason: reason::CONSUMER,
            info: [4; 72],
            private: [5; 148],
        }));
        assert_eq!(rej[8..12], [1 << 6, 3 << 1, 0, 28]);
        assert_eq!((rej[12], rej[83], rej[84]), (4, 4, 5));
        let mra = emit(Message::Mra(Mra {
            local_id: 1,
            remote_id: 2,
            acknowledged: 1,
            timeout: 24,
            private: [6; 222],
        }));
        assert_eq!(mra[8..11], [1 << 6, 24 << 3, 6]);
        let dreq = emit(Message::Dreq(Dreq {
            local_id: 1,
            remote_id: 2,
            remote_qpn: 0x03_0405,
            private: [6; 220],
        }));
        assert_eq!(dreq[8..13], [3, 4, 5, 0, 6]);
        let sidr = emit(Message::SidrRep(SidrRep {
            request_id: 1,
            status: 2,
            info_bytes: 3,
            qpn: 0x04_0506,
            service: 7,
            qkey: 8,
            info: [9; 72],
            private: [10; 136],
        }));
        assert_eq!(sidr[4..12], [2, 3, 0, 0, 4, 5, 6, 0]);
        assert_eq!((sidr[19], sidr[23], sidr[24], sidr[96]), (7, 8, 9, 10));
    }

    #[test]
    fn what_is_not_a_message_is_named() {
        let whole = req().emit();
        let with = |at: usize, byte| {
            let mut bytes = whole;
            bytes[at] = byte;
            Mad::parse(&bytes).unwrap_err()
        };
        assert_eq!(Mad::parse(&whole[1..]), Err(MadError::Length(255)));
        assert_eq!(with(0, 2), MadError::Version(2));
        assert_eq!(with(1, 3), MadError::Class { class: 3, version: 2 });
        assert_eq!(with(2, 1), MadError::Class { class: 7, version: 1 });
        assert_eq!(with(3, 0x83), MadError::Method(0x83));
        assert_eq!(with(17, 0x19), MadError::Attribute(0x19));
    }

    proptest! {
        #[test]
        fn what_is_understood_is_said_in_the_same_way(
            kind in 0x10_u8..0x19, data in proptest::collection::vec(any::<u8>(), MAD_BYTES)
        ) {
            let mut bytes: [u8; MAD_BYTES] = data.try_into().unwrap();
            bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
            bytes[16..18].copy_from_slice(&[0, kind]);
            let mad = Mad::parse(&bytes).unwrap();
            prop_assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
        }
    }
}

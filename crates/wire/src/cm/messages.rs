//! The messages (InfiniBand vol. 1, 12.6 and 12.11).

use super::DATA_BYTES;
use super::field::{Bits, get, layout, put};
use crate::fields::Field;

/// Transport service types of a REQ.
pub mod transport {
    /// Reliable connection.
    pub const RC: u8 = 0;
}

/// Reasons of a REJ (table 109).
pub mod reason {
    /// What was asked for did not come in time.
    pub const TIMEOUT: u16 = 4;
    /// The communication ID is nobody's.
    pub const INVALID_ID: u16 = 6;
    /// The service ID is nobody's.
    pub const INVALID_SERVICE: u16 = 8;
    /// Not a transport that the service has.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The peer takes a connection for alive that is none any more.
    pub const STALE: u16 = 10;
    /// The path's GID is not the sender's.
    pub const INVALID_GID: u16 = 12;
    /// The path MTU is none.
    pub const INVALID_MTU: u16 = 26;
    /// The consumer says so: its private data say why.
    pub const CONSUMER: u16 = 28;
}

/// Status of a SIDR_REP (table 121).
pub mod sidr_status {
    /// The queue pair is there.
    pub const VALID: u8 = 0;
    /// The service ID is nobody's.
    pub const NOT_SUPPORTED: u8 = 1;
    /// The consumer says so.
    pub const REJECTED: u8 = 2;
}

layout! {
    /// The primary path of a REQ.
    Path {
        /// Local identifier of the sender's port; on Ethernet it means nothing.
        local_lid: u16 = (52, 0, 16);
        /// That of the receiver's port.
        remote_lid: u16 = (54, 0, 16);
        /// Flow label.
        flow_label: u32 = (88, 0, 20);
        /// Rate, by its code.
        rate: u8 = (91, 2, 6);
        /// Traffic class.
        traffic_class: u8 = (92, 0, 8);
        /// Hop limit.
        hop_limit: u8 = (93, 0, 8);
        /// Service level.
        sl: u8 = (94, 0, 4);
        /// Whether both are in one subnet.
        subnet_local: bool = (94, 4, 1);
        /// How long the receiver is to wait for an acknowledgement: 4.096 µs · 2^n.
        ack_timeout: u8 = (95, 0, 5);
    } {
        /// GID of the sender's port.
        local_gid: 16 = 56;
        /// GID of the receiver's port.
        remote_gid: 16 = 72;
    } {}
}

layout! {
    /// Request for communication (table 106). An alternate path is neither read nor written.
    Req {
        /// The sender's communication ID.
        local_id: u32 = (0, 0, 32);
        /// Service ID.
        service: u64 = (8, 0, 64);
        /// The sender's node GUID.
        guid: u64 = (16, 0, 64);
        /// The sender's queue key; of connections, 0.
        qkey: u32 = (28, 0, 32);
        /// The sender's queue pair.
        qpn: u32 = (32, 0, 24);
        /// READs and atomics that the sender answers at a time.
        responder_resources: u8 = (35, 0, 8);
        /// READs and atomics that the sender has on their way at a time.
        initiator_depth: u8 = (39, 0, 8);
        /// How long the receiver may take to answer: 4.096 µs · 2^n.
        remote_timeout: u8 = (43, 0, 5);
        /// Transport service type: [`transport`].
        transport: u8 = (43, 5, 2);
        /// Whether the sender's receive queue has end-to-end flow control.
        flow_control: bool = (43, 7, 1);
        /// PSN that the receiver's first packet is to have.
        psn: u32 = (44, 0, 24);
        /// How long the sender may take to answer: 4.096 µs · 2^n.
        local_timeout: u8 = (47, 0, 5);
        /// Retries of the receiver's queue pair.
        retry: u8 = (47, 5, 3);
        /// Partition key.
        pkey: u16 = (48, 0, 16);
        /// Path MTU by its code: 1 is 256 bytes.
        mtu: u8 = (50, 0, 4);
        /// Retries of the receiver's queue pair when nobody posted a receive; 7: for ever.
        rnr_retry: u8 = (50, 5, 3);
        /// How often a message of the connection manager may be sent again.
        cm_retries: u8 = (51, 0, 4);
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = (51, 4, 1);
        /// Says more if the transport service type is 3.
        extended_transport: u8 = (51, 5, 3);
    } {
        /// Private data.
        private: 92 = 140;
    } {
        /// The path.
        path: Path;
    }
}

layout! {
    /// Message receipt acknowledgement (table 107): the answer takes longer.
    Mra {
        /// The sender's communication ID.
        local_id: u32 = (0, 0, 32);
        /// The receiver's communication ID.
        remote_id: u32 = (4, 0, 32);
        /// What is acknowledged: 0 REQ, 1 REP, 2 LAP.
        acknowledged: u8 = (8, 0, 2);
        /// How long the answer takes yet: 4.096 µs · 2^n.
        timeout: u8 = (9, 0, 5);
    } {
        /// Private data.
        private: 222 = 10;
    } {}
}

layout! {
    /// Rejection (table 108).
    Rej {
        /// The sender's communication ID, or 0.
        local_id: u32 = (0, 0, 32);
        /// The receiver's communication ID, or 0.
        remote_id: u32 = (4, 0, 32);
        /// What is rejected: 0 REQ, 1 REP, 2 something else.
        rejected: u8 = (8, 0, 2);
        /// Bytes of additional information.
        info_bytes: u8 = (9, 0, 7);
        /// Why: [`reason`].
        reason: u16 = (10, 0, 16);
    } {
        /// Additional information.
        info: 72 = 12;
        /// Private data.
        private: 148 = 84;
    } {}
}

layout! {
    /// Reply to a request for communication (table 110).
    Rep {
        /// The sender's communication ID.
        local_id: u32 = (0, 0, 32);
        /// The receiver's communication ID.
        remote_id: u32 = (4, 0, 32);
        /// The sender's queue key; of connections, 0.
        qkey: u32 = (8, 0, 32);
        /// The sender's queue pair.
        qpn: u32 = (12, 0, 24);
        /// PSN that the receiver's first packet is to have.
        psn: u32 = (20, 0, 24);
        /// READs and atomics that the sender answers at a time.
        responder_resources: u8 = (24, 0, 8);
        /// READs and atomics that the sender has on their way at a time.
        initiator_depth: u8 = (25, 0, 8);
        /// How long the sender's NIC takes to acknowledge: 4.096 µs · 2^n.
        ack_delay: u8 = (26, 0, 5);
        /// Whether an alternate path was accepted.
        failover: u8 = (26, 5, 2);
        /// Whether the sender's receive queue has end-to-end flow control.
        flow_control: bool = (26, 7, 1);
        /// Retries of the receiver's queue pair when nobody posted a receive; 7: for ever.
        rnr_retry: u8 = (27, 0, 3);
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = (27, 3, 1);
        /// The sender's node GUID.
        guid: u64 = (28, 0, 64);
    } {
        /// Private data.
        private: 196 = 36;
    } {}
}

layout! {
    /// Ready to use (table 111).
    Rtu {
        /// The sender's communication ID.
        local_id: u32 = (0, 0, 32);
        /// The receiver's communication ID.
        remote_id: u32 = (4, 0, 32);
    } {
        /// Private data.
        private: 224 = 8;
    } {}
}

layout! {
    /// Request for communication release (table 112).
    Dreq {
        /// The sender's communication ID.
        local_id: u32 = (0, 0, 32);
        /// The receiver's communication ID.
        remote_id: u32 = (4, 0, 32);
        /// The receiver's queue pair.
        remote_qpn: u32 = (8, 0, 24);
    } {
        /// Private data.
        private: 220 = 12;
    } {}
}

layout! {
    /// Reply to a request for communication release (table 113).
    Drep {
        /// The sender's communication ID.
        local_id: u32 = (0, 0, 32);
        /// The receiver's communication ID.
        remote_id: u32 = (4, 0, 32);
    } {
        /// Private data.
        private: 224 = 8;
    } {}
}

layout! {
    /// Service ID resolution request (table 119): which queue pair takes datagrams for a service?
    SidrReq {
        /// The request's ID, of the sender's choice.
        request_id: u32 = (0, 0, 32);
        /// Partition key.
        pkey: u16 = (4, 0, 16);
        /// Service ID.
        service: u64 = (8, 0, 64);
    } {
        /// Private data.
        private: 216 = 16;
    } {}
}

layout! {
    /// Service ID resolution response (table 120).
    SidrRep {
        /// The request's ID.
        request_id: u32 = (0, 0, 32);
        /// [`sidr_status`].
        status: u8 = (4, 0, 8);
        /// Bytes of additional information.
        info_bytes: u8 = (5, 0, 8);
        /// The queue pair.
        qpn: u32 = (8, 0, 24);
        /// Service ID.
        service: u64 = (12, 0, 64);
        /// The queue pair's queue key.
        qkey: u32 = (20, 0, 32);
    } {
        /// Additional information.
        info: 72 = 24;
        /// Private data.
        private: 136 = 96;
    } {}
}

/// Declares the messages by their attribute IDs.
macro_rules! messages {
    ($($name:ident = $attribute:literal, $doc:literal;)*) => {
        /// A message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Message {
            $(#[doc = $doc] $name($name),)*
        }

        /// Which message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum MessageKind {
            $(#[doc = $doc] $name,)*
        }

        impl MessageKind {
            /// Its attribute ID.
            pub fn attribute(self) -> u16 {
                match self {
                    $(Self::$name => $attribute,)*
                }
            }
        }

        impl MessageKind {
            /// The kind of an attribute ID; `None` for one that is not known.
            pub fn from_attribute(attribute: u16) -> Option<Self> {
                match attribute {
                    $($attribute => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Fields of its bytes behind the datagram's header, in the order of their places. Bits between them
            /// are not used, or those of an alternate path.
            pub fn fields(self) -> Vec<&'static Field> {
                match self {
                    $(Self::$name => $name::fields(),)*
                }
            }
        }

        impl Message {
            /// Which message it is.
            pub fn kind(&self) -> MessageKind {
                match self {
                    $(Self::$name(_) => MessageKind::$name,)*
                }
            }

            pub(super) fn parse(attribute: u16, data: &[u8; DATA_BYTES]) -> Option<Self> {
                match attribute {
                    $($attribute => Some(Self::$name($name::read(data))),)*
                    _ => None,
                }
            }

            pub(super) fn emit(&self, data: &mut [u8; DATA_BYTES]) {
                match self {
                    $(Self::$name(message) => message.write(data),)*
                }
            }
        }
    };
}
messages! {
    Req = 0x10, "Request for communication.";
    Mra = 0x11, "Message receipt acknowledgement.";
    Rej = 0x12, "Rejection.";
    Rep = 0x13, "Reply to a request for communication.";
    Rtu = 0x14, "Ready to use.";
    Dreq = 0x15, "Request for communication release.";
    Drep = 0x16, "Reply to a request for communication release.";
    SidrReq = 0x17, "Service ID resolution request.";
    SidrRep = 0x18, "Service ID resolution response.";
}

//! RoCEv2 packets: base transport header, extension headers, payload and invariant CRC, and the IP
//! and UDP headers around them.
//!
//! The module follows the InfiniBand Architecture Specification vol. 1, chapter 9 (transport
//! headers, opcodes) and 7.8.2 (invariant CRC), and annex A17 (RoCEv2) for IP and UDP. A packet
//! here is UDP's payload: BTH, extension headers, payload, pad, ICRC.
//!
//! | file | what |
//! |---|---|
//! | `opcode`
//! services, operations, and the headers of each operation |
//! | `headers` | BTH and the extension headers as values |
//! | `timer` | codes of timers and credits |
//! | `packet`
//! a checked packet, and a frame whose payload the caller fills in |
//! | `icrc` | the invariant CRC |
//! | `ip` | the [`Envelope`]: IPv4, IPv6 and UDP headers |

mod headers;
mod icrc;
mod ip;
mod opcode;
mod packet;
mod timer;

pub use headers::{Aeth, AtomicEth, Bth, Dceth, Deth, NakCode, Reth, Syndrome};
pub use icrc::{icrc, icrc_of_headers};
pub use ip::{
    Addresses, Envelope, Fields, IpError, MAX_IP_UDP_BYTES, ROCE_PORT, UDP_HEADER_BYTES,
    flow_label_of, udp_src_port,
};
pub use opcode::{ExtensionSet, Opcode, Operation, Position, Service, Tail};
pub use packet::{Extensions, Frame, Headers, Packet, PacketError};
pub use timer::{ack_timeout_ns, credit_code, credits, rnr_timer_code, rnr_timer_ns};

/// Bytes of the base transport header.
pub const BTH_BYTES: usize = 12;
/// Bytes of the invariant CRC at a packet's end.
pub const ICRC_BYTES: usize = 4;
/// Largest path MTU: payload bytes of one packet (InfiniBand vol. 1, 9.6.1).
pub const MAX_PATH_MTU: usize = 4096;
/// Most bytes of BTH and extension headers: a masked compare-and-swap of DC.
pub const MAX_HEADER_BYTES: usize = BTH_BYTES + 20 + 28 + 20;
/// Longest packet: a WRITE ONLY of DC with immediate data and a payload of [`MAX_PATH_MTU`].
pub const MAX_PACKET_BYTES: usize = BTH_BYTES + 20 + 16 + 4 + MAX_PATH_MTU + ICRC_BYTES;

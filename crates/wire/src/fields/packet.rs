//! Headers of packets (InfiniBand vol. 1, 9.2 to 9.4, 9.7.5.1 and 13.4; annexes A14 and A17; RFC 791, 8200, 768;
//! IEEE 802.3 and 802.1Q).

use super::{Field, Layout, r32, rest, w8, w16, w32, w64};
use crate::roce::ExtensionSet;

/// Ethernet header.
pub const ETHERNET: Layout = Layout {
    name: "ethernet",
    bytes: 14,
    fields: &[
        Field::bytes("destination", 0x0, 6),
        Field::bytes("source", 0x6, 6),
        w16("ethertype", 0xc, 15, 0),
    ],
};

/// VLAN tag behind an Ethernet header's type.
pub const VLAN: Layout = Layout {
    name: "vlan",
    bytes: 4,
    fields: &[
        w16("pcp", 0x0, 15, 13),
        w16("dei", 0x0, 12, 12),
        w16("vid", 0x0, 11, 0),
        w16("ethertype", 0x2, 15, 0),
    ],
};

/// Header of Linux "cooked" captures (the tcpdump group's LINKTYPE_LINUX_SLL).
pub const COOKED: Layout = Layout {
    name: "linux_sll",
    bytes: 16,
    fields: &[
        w16("packet_type", 0x0, 15, 0),
        w16("arphrd_type", 0x2, 15, 0),
        w16("address_length", 0x4, 15, 0),
        Field::bytes("address", 0x6, 8),
        w16("protocol", 0xe, 15, 0),
    ],
};

/// Its second version (LINKTYPE_LINUX_SLL2).
pub const COOKED2: Layout = Layout {
    name: "linux_sll2",
    bytes: 20,
    fields: &[
        w16("protocol", 0x0, 15, 0),
        Field::bytes("rsvd", 0x2, 2),
        w32("interface_index", 0x4, 31, 0),
        w16("arphrd_type", 0x8, 15, 0),
        w8("packet_type", 0xa, 7, 0),
        w8("address_length", 0xb, 7, 0),
        Field::bytes("address", 0xc, 8),
    ],
};

/// IPv4 header without options.
pub const IPV4: Layout = Layout {
    name: "ipv4",
    bytes: 20,
    fields: &[
        w8("version", 0x00, 7, 4),
        w8("ihl", 0x00, 3, 0),
        w8("dscp", 0x01, 7, 2),
        w8("ecn", 0x01, 1, 0),
        w16("total_length", 0x02, 15, 0),
        w16("identification", 0x04, 15, 0),
        w16("reserved", 0x06, 15, 15).zero(),
        w16("df", 0x06, 14, 14),
        w16("mf", 0x06, 13, 13),
        w16("fragment_offset", 0x06, 12, 0),
        w8("ttl", 0x08, 7, 0),
        w8("protocol", 0x09, 7, 0),
        w16("header_checksum", 0x0a, 15, 0),
        w32("source_address", 0x0c, 31, 0),
        w32("destination_address", 0x10, 31, 0),
    ],
};

/// IPv6 header.
pub const IPV6: Layout = Layout {
    name: "ipv6",
    bytes: 40,
    fields: &[
        w32("version", 0x00, 31, 28),
        w32("traffic_class", 0x00, 27, 20),
        w32("flow_label", 0x00, 19, 0),
        w16("payload_length", 0x04, 15, 0),
        w8("next_header", 0x06, 7, 0),
        w8("hop_limit", 0x07, 7, 0),
        Field::bytes("source_address", 0x08, 16),
        Field::bytes("destination_address", 0x18, 16),
    ],
};

/// UDP header.
pub const UDP: Layout = Layout {
    name: "udp",
    bytes: 8,
    fields: &[
        w16("source_port", 0x0, 15, 0),
        w16("destination_port", 0x2, 15, 0),
        w16("length", 0x4, 15, 0),
        w16("checksum", 0x6, 15, 0),
    ],
};

/// Base transport header.
pub const BTH: Layout = Layout {
    name: "bth",
    bytes: 12,
    fields: &[
        w8("OpCode", 0x0, 7, 0),
        w8("SE", 0x1, 7, 7),
        w8("M", 0x1, 6, 6),
        w8("PadCnt", 0x1, 5, 4),
        w8("TVer", 0x1, 3, 0),
        w16("P_Key", 0x2, 15, 0),
        w32("FECN", 0x4, 31, 31),
        w32("BECN", 0x4, 30, 30),
        r32(0x4, 29, 24),
        w32("DestQP", 0x4, 23, 0),
        w32("A", 0x8, 31, 31),
        r32(0x8, 30, 24),
        w32("PSN", 0x8, 23, 0),
    ],
};

/// RDMA extended transport header.
pub const RETH: Layout = Layout {
    name: "reth",
    bytes: 16,
    fields: &[w64("VA", 0x0), w32("R_Key", 0x8, 31, 0), w32("DMALen", 0xc, 31, 0)],
};

/// Atomic extended transport header.
pub const ATOMIC_ETH: Layout = Layout {
    name: "atomiceth",
    bytes: 28,
    fields: &[w64("VA", 0x00), w32("R_Key", 0x08, 31, 0), w64("SwapDt", 0x0c), w64("CmpDt", 0x14)],
};

/// Masks of a masked atomic: bellpush's own.
pub const MASKS: Layout = Layout {
    name: "masks (bellpush's own)",
    bytes: 20,
    fields: &[w64("change", 0x00), w64("compare", 0x08), w32("bytes", 0x10, 31, 0)],
};

/// FLUSH extended transport header (annex A19): what has to become visible, where it is, and for whom.
pub const FETH: Layout = Layout {
    name: "feth",
    bytes: 4,
    fields: &[r32(0x0, 31, 6), w32("SEL", 0x0, 5, 4), w32("PLT", 0x0, 3, 0)],
};

/// ACK extended transport header.
pub const AETH: Layout = Layout {
    name: "aeth",
    bytes: 4,
    fields: &[w32("Syndrome", 0x0, 31, 24), w32("MSN", 0x0, 23, 0)],
};

/// Atomic ACK extended transport header.
pub const ATOMIC_ACK_ETH: Layout =
    Layout { name: "atomicacketh", bytes: 8, fields: &[w64("OrigRemDt", 0x0)] };

/// Datagram extended transport header.
pub const DETH: Layout = Layout {
    name: "deth",
    bytes: 8,
    fields: &[w32("Q_Key", 0x0, 31, 0), r32(0x4, 31, 24), w32("SrcQP", 0x4, 23, 0)],
};

/// XRC extended transport header.
pub const XRCETH: Layout =
    Layout { name: "xrceth", bytes: 4, fields: &[r32(0x0, 31, 24), w32("XRCSRQ", 0x0, 23, 0)] };

/// Header of a request of a dynamic connection: bellpush's own.
pub const DCETH: Layout = Layout {
    name: "dceth (bellpush's own)",
    bytes: 20,
    fields: &[
        w64("key", 0x00),
        r32(0x08, 31, 24),
        w32("source", 0x08, 23, 0),
        r32(0x0c, 31, 24),
        w32("start", 0x0c, 23, 0),
        w32("life", 0x10, 31, 0),
    ],
};

/// Immediate data.
pub const IMM_DT: Layout = Layout { name: "immdt", bytes: 4, fields: &[w32("ImmDt", 0x0, 31, 0)] };

/// Invalidate extended transport header.
pub const IETH: Layout = Layout { name: "ieth", bytes: 4, fields: &[w32("R_Key", 0x0, 31, 0)] };

/// Bytes behind the BTH of a congestion notification packet.
pub const CNP: Layout = Layout { name: "cnp", bytes: 16, fields: &[rest(0x0, 16)] };

/// Invariant CRC; its least significant byte is first.
pub const ICRC: Layout = Layout { name: "icrc", bytes: 4, fields: &[w32("ICRC", 0x0, 31, 0)] };

/// Header of a management datagram.
pub const MAD: Layout = Layout {
    name: "mad",
    bytes: 24,
    fields: &[
        w8("BaseVersion", 0x00, 7, 0),
        w8("MgmtClass", 0x01, 7, 0),
        w8("ClassVersion", 0x02, 7, 0),
        w8("R", 0x03, 7, 7),
        w8("Method", 0x03, 6, 0),
        w16("Status", 0x04, 15, 0),
        w16("ClassSpecific", 0x06, 15, 0),
        w64("TransactionID", 0x08),
        w16("AttributeID", 0x10, 15, 0),
        rest(0x12, 2),
        w32("AttributeModifier", 0x14, 31, 0),
    ],
};

/// Layouts of the extension headers in a set, in the order of the packet.
pub fn extensions(set: ExtensionSet) -> impl Iterator<Item = &'static Layout> {
    [
        (set.xrc, &XRCETH),
        (set.dc, &DCETH),
        (set.deth, &DETH),
        (set.reth, &RETH),
        (set.atomic, &ATOMIC_ETH),
        (set.masks, &MASKS),
        (set.aeth, &AETH),
        (set.atomic_ack, &ATOMIC_ACK_ETH),
        (set.imm, &IMM_DT),
        (set.ieth, &IETH),
        (set.cnp, &CNP),
    ]
    .into_iter()
    .filter_map(|(due, layout)| due.then_some(layout))
}

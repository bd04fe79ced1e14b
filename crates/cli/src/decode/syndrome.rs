//! Syndromes of error CQEs: what they mean, and what usually causes them.
//!
//! Meanings: InfiniBand vol. 1, 11.6.2 (completion return status). Names: libibverbs. What a vendor's code stands for
//! is not published; some were told where errors were reported.

use bellpush::wire::cqe::Syndrome;

/// What there is to say of a syndrome: the name of its status in libibverbs, its meaning, usual causes.
struct Words(&'static str, &'static str, &'static str);

fn words(syndrome: Syndrome) -> Words {
    match syndrome {
        Syndrome::LocalLength => Words(
            "IBV_WC_LOC_LEN_ERR",
            "the message is longer than the buffers that it goes to, or than a message may be",
            "a receive that is shorter than what the peer sent; a READ's or atomic's response that does not fit its \
             entries; a datagram longer than the path MTU; on datagram queue pairs a receive without 40 bytes for the GRH",
        ),
        Syndrome::LocalQpOp => Words(
            "IBV_WC_LOC_QP_OP_ERR",
            "the NIC found the WQE malformed, or the queue pair cannot do what it asks",
            "a wrong ds, opcode, qpn or wqe_index; an opcode that the transport does not have; a READ or atomic where \
             max_rd_atomic is 0 (those beyond another max_rd_atomic wait, and are no error); a WQE that was not whole \
             when the doorbell rang (decode it: bellpush decode wqe)",
        ),
        Syndrome::LocalProt => Words(
            "IBV_WC_LOC_PROT_ERR",
            "a gather or scatter entry names memory that the queue pair may not access",
            "a wrong lkey, or one of another protection domain; an address outside the region; a region without local \
             write for a receive, READ or atomic; memory deregistered or unmapped while the WQE was pending; an IOMMU \
             that refuses the device",
        ),
        Syndrome::WrFlush => Words(
            "IBV_WC_WR_FLUSH_ERR",
            "the queue pair was in error before the NIC came to this WQE",
            "a consequence, not a cause: the first error CQE of the queue pair says what went wrong; also a queue pair \
             that its program moved to the error state, or whose peer disconnected",
        ),
        Syndrome::MwBind => Words(
            "IBV_WC_MW_BIND_ERR",
            "a memory window or key could not be bound",
            "a UMR with more entries than the key has room for; a key that is not free, or of another queue pair; a \
             region without the right to bind; rights beyond the region's",
        ),
        Syndrome::BadResp => Words(
            "IBV_WC_BAD_RESP_ERR",
            "the responder's answer was malformed",
            "a response whose opcode or length does not fit the request; a peer of another path MTU; a NIC or network \
             that corrupts packets",
        ),
        Syndrome::LocalAccess => Words(
            "IBV_WC_LOC_ACCESS_ERR",
            "a protection error on a buffer of this side, while an RDMA WRITE with immediate of the peer was carried out",
            "a buffer that was deregistered, or that may not be written; a wrong lkey of a receive that a SEND takes is \
             IBV_WC_LOC_PROT_ERR",
        ),
        Syndrome::RemoteInvalReq => Words(
            "IBV_WC_REM_INV_REQ_ERR",
            "the responder refused the request as malformed (NAK: invalid request)",
            "a message longer than the posted receive; an operation that the remote queue pair does not allow; more READs \
             and atomics at a time than it answers: a max_rd_atomic above the peer's max_dest_rd_atomic, or equal numbers \
             that are no power of two (mlx5 keeps log2 of them; Linux rounds up, and some kernels from 5.10 to 6.11 round \
             down); an atomic at an address that is not a multiple of 8; path MTUs that differ",
        ),
        Syndrome::RemoteAccess => Words(
            "IBV_WC_REM_ACCESS_ERR",
            "the responder refused the access (NAK: remote access error)",
            "a wrong rkey, or one of another protection domain; an address or length beyond the remote region; a region \
             or queue pair without remote write, read or atomic; a region that its owner has deregistered",
        ),
        Syndrome::RemoteOp => Words(
            "IBV_WC_REM_OP_ERR",
            "the responder failed to carry the request out (NAK: remote operational error)",
            "an error of the remote queue pair's own: its receive had a protection error, or its queue was broken; \
             see the remote CQ",
        ),
        Syndrome::TransportRetryExc => Words(
            "IBV_WC_RETRY_EXC_ERR",
            "all retries ended without an answer",
            "a peer that is gone or whose queue pair is not in RTR or RTS, or is destroyed; a wrong destination queue \
             pair, GID or GID index; packets that are lost: flow control (PFC), MTU, routing, a firewall on UDP port \
             4791; a timeout that is too short",
        ),
        Syndrome::RnrRetryExc => Words(
            "IBV_WC_RNR_RETRY_EXC_ERR",
            "the responder had no receive posted when the RNR retries ended",
            "a receiver that posts too few receives or too late; rnr_retry below 7 (7: for ever)",
        ),
        Syndrome::RemoteAborted => Words(
            "IBV_WC_REM_ABORT_ERR",
            "the responder aborted the operation",
            "a responder that gives an operation up; also a page fault of on-demand paging (vendor 0x93)",
        ),
    }
}

/// The syndrome's status in libibverbs.
pub(crate) fn name(syndrome: Syndrome) -> String {
    words(syndrome).0.into()
}

/// What it means, what usually causes it, and where that is from.
pub(super) fn explained(syndrome: Syndrome) -> [String; 2] {
    let Words(name, means, causes) = words(syndrome);
    [format!("{name}: {means} (InfiniBand vol. 1, 11.6.2)"), format!("usual causes: {causes}")]
}

/// Vendor codes with the syndrome that they were reported with, and what was said of them.
const REPORTED: [(u8, Syndrome, &str); 10] = [
    (0x51, Syndrome::LocalProt, "linux-rdma/perftest#173: GPU memory over PCIe"),
    (0x53, Syndrome::LocalProt, "Juniper/warp17#81: a SEND's lkey"),
    (0x56, Syndrome::LocalProt, "linux-rdma: a receive, with an IO_PAGE_FAULT of the IOMMU"),
    (0x78, Syndrome::MwBind, "Linux, UMR of an on-demand region: a key with too little room"),
    (0x87, Syndrome::RnrRetryExc, "a peer that posts no receives"),
    (0x88, Syndrome::RemoteAccess, "linux-rdma: RDMA_WRITE refused by the peer"),
    (0x89, Syndrome::RemoteOp, "an error of the remote queue pair's own"),
    (0x93, Syndrome::RemoteAborted, "UCX: a page fault of on-demand paging"),
    (0x99, Syndrome::RemoteAborted, "UCX: PSN"),
    (0xf9, Syndrome::WrFlush, "linux-nvme/nvme-cli#3268: receives of a queue pair in error"),
];

/// What is known of a vendor's code.
pub(super) fn vendor(code: u8, syndrome: Option<Syndrome>) -> String {
    let known = REPORTED.iter().find(|(known, of, _)| *known == code && Some(*of) == syndrome);
    match known {
        Some((_, _, said)) => format!("vendor syndrome {code:#04x} was reported before ({said})"),
        None => format!(
            "vendor syndrome {code:#04x}: its meaning is the NIC vendor's, and is not published"
        ),
    }
}

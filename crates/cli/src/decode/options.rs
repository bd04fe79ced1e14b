//! IPv4 headers with options (RFC 791, 3.1), which no [`Envelope`](bellpush::wire::roce::Envelope) has.

use bellpush::wire::fields::{IPV4, UDP};
use bellpush::wire::roce::{ICRC_BYTES, icrc_of_headers};

use super::item::Item;

/// The same packet without its options, and how many bytes those have; `None` where it has none. The header's checksum
/// is right if it was.
pub(super) fn without(ip: &[u8]) -> Option<(Vec<u8>, usize)> {
    let header = usize::from(ip.first().filter(|first| **first >> 4 == 4)? & 0xf) * 4;
    let options = header.checked_sub(IPV4.bytes).filter(|&bytes| bytes > 0)?;
    let rest = ip.get(header..)?;
    let mut plain = [&ip[..IPV4.bytes], rest].concat();
    plain[0] = 0x45;
    let total = u16::from_be_bytes([ip[2], ip[3]]).checked_sub(options as u16)?;
    plain[2..4].copy_from_slice(&total.to_be_bytes());
    plain[10..12].fill(0);
    let right = !sum(&plain[..IPV4.bytes]);
    let checksum = if sum(&ip[..header]) == 0xffff { right } else { right ^ 1 };
    plain[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some((plain, options))
}

/// Ones' complement sum of 16-bit words (RFC 1071).
pub(super) fn sum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|word| u32::from_be_bytes([0, 0, word[0], word[1]]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Compares the ICRC of the packet whose BTH lies at `at` of `all`, and which ends at `end`, with that of its header
/// and its options as they stand. The annex (A17.3.3) has none of them among the fields that an ICRC does not cover, and
/// does not speak of options: another number is not called wrong.
pub(super) fn icrc(item: &mut Item, all: &[u8], (at, end): (usize, usize), options: usize) {
    let (body, place) = (&all[at..end - ICRC_BYTES], end - ICRC_BYTES);
    let headers = &all[at - UDP.bytes - IPV4.bytes - options..at];
    let computed = icrc_of_headers(headers, body).to_le_bytes();
    if all[place..end] == computed {
        item.means("right, if it covers the IPv4 options as they stand");
    } else {
        let computed = u32::from_be_bytes(computed);
        let what = "nothing says how IPv4 options count, so this may be wrong or right";
        item.note(place, format!("over the options as they stand it is {computed:#010x}: {what}"));
    }
}

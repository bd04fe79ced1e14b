//! The exchange of rdma-core's pingpong programs (`libibverbs/examples/*_pingpong.c`). Each side
//! sends `LID:QPN:PSN:GID` in hexadecimal, with a NUL, the client first; then the client sends
//! `done`. The server afterwards returns each message.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use bellpush::nic::soft::SoftNic;
use bellpush::nic::{Change, Mtu, QpType};
use bellpush::wire::wqe::Opcode;

use super::end::{DEPTH, End, GRH_BYTES, Peer, QKEY, Side, Work};
use super::exchange::{ServeError, address_of, gid_of, gid_of_hex, hex_of_gid};

/// Longest message that the server receives, in bytes.
const MAX_MESSAGE: usize = 1 << 20;
/// Longest wait for the next message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of a side's message: 4, 6, 6 and 32 digits, three colons, a NUL.
const MESSAGE_BYTES: usize = 52;

/// One side's description of its queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dest {
    /// Queue pair number, 24 bits.
    qpn: u32,
    /// First PSN that the side sends, 24 bits.
    psn: u32,
    gid: Ipv6Addr,
}

impl Dest {
    fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let text = str::from_utf8(bytes.strip_suffix(&[0])?).ok()?;
        let mut parts = text.split(':');
        // The first field is the LID, which RoCE does not have.
        let [_, qpn, psn] = [4, 6, 6].map(|digits| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            part.bytes()
                .all(|b| b.is_ascii_hexdigit())
                .then(|| u32::from_str_radix(part, 16).ok())?
        });
        let gid = gid_of_hex(parts.next()?)?;
        parts.next().is_none().then_some(Self { qpn: qpn?, psn: psn?, gid })
    }

    fn emit(&self) -> Vec<u8> {
        format!("{:04x}:{:06x}:{:06x}:{}\0", 0, self.qpn, self.psn, hex_of_gid(self.gid)).into()
    }
}

/// Reads the client's description.
fn read_client(stream: &mut impl Read) -> Result<Dest, ServeError> {
    let mut bytes = [0; MESSAGE_BYTES];
    stream.read_exact(&mut bytes)?;
    Dest::parse(&bytes).ok_or_else(|| ServeError::malformed("a destination", &bytes))
}

/// Sends the description of our queue pair, which must already be able to receive, and waits for
/// the client's `done`.
fn answer(stream: &mut (impl Read + Write), own: &Dest) -> Result<(), ServeError> {
    stream.write_all(&own.emit())?;
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes)?;
    if bytes == *b"done\0" { Ok(()) } else { Err(ServeError::malformed("'done'", &bytes)) }
}

/// Serves one client: returns each of `iterations` messages. The result is the queue pair: a client
/// whose last acknowledgement is late or lost resends its last message, and does so for ever if
/// nothing answers.
///
/// # Errors
/// [`ServeError`]: the exchange, or a completion that is bad or does not come.
pub fn serve(
    nic: &Arc<SoftNic>,
    address: IpAddr,
    kind: QpType,
    mtu: Mtu,
    iterations: u32,
    stream: &mut (impl Read + Write),
) -> Result<(String, End), ServeError> {
    let header = if kind == QpType::Ud { GRH_BYTES } else { 0 };
    let client = read_client(stream)?;
    let mut end = End::open(nic, header + MAX_MESSAGE)?;
    let local = end.new_qp(kind)?;
    for _ in 0..DEPTH.min(iterations) {
        end.post_recv(0, header + MAX_MESSAGE)?;
    }
    let peer = Peer { address: address_of(client.gid), qpn: client.qpn, psn: client.psn };
    // As in the stock server: about 0.6 ms from an RNR NAK to the next try. The ACK timeout is 18
    // (1.07 s) instead of the stock server's 14: eight of those end after 0.54 s, and an emulated
    // client may stop for longer.
    let with = Change { min_rnr_timer: Some(12), timeout: Some(18), ..Change::default() };
    end.connect(peer, mtu, with)?;
    let own = Dest { qpn: local.qpn.0, psn: local.psn.value(), gid: gid_of(address) };
    answer(stream, &own)?;

    let mut bytes = 0;
    for n in 0..iterations {
        let cqe = end.wait(Side::Recv, "a receive", MESSAGE_TIMEOUT)?;
        let length = cqe.byte_cnt as usize;
        let length = length.checked_sub(header).ok_or(ServeError::Length { length })?;
        bytes += length as u64;
        if n + DEPTH < iterations {
            end.post_recv(0, header + MAX_MESSAGE)?;
        }
        let b = QKEY.into();
        let (opcode, offset) = (Opcode::Send, header);
        end.post(&Work { opcode, offset, bytes: length, addr: 0, rkey: 0, a: 0, b })?;
        end.wait(Side::Send, "a send", MESSAGE_TIMEOUT)?;
    }
    Ok((format!("{iterations} messages, {bytes} bytes received and sent back"), end))
}

#[cfg(test)]
mod tests {
    use super::super::exchange::script::Script;
    use super::*;

    /// ibv_rc_pingpong of rdma-core 44.0 on rxe, both ways.
    const CLIENT: &[u8] = b"0000:000012:a7e088:00000000000000000000ffff0a2f0002\0";
    const SERVER: &[u8] = b"0000:000011:aa5b4f:00000000000000000000ffff0a2f0002\0";

    fn gid() -> Ipv6Addr {
        "::ffff:10.47.0.2".parse().unwrap()
    }

    #[test]
    fn a_recorded_exchange_is_answered_as_the_stock_server_did() {
        let mut script = Script::new(&[CLIENT, b"done\0"]);
        let client = read_client(&mut script).unwrap();
        assert_eq!(client, Dest { qpn: 0x12, psn: 0xa7e088, gid: gid() });
        answer(&mut script, &Dest { qpn: 0x11, psn: 0xaa5b4f, gid: gid() }).unwrap();
        assert_eq!(script.answers, SERVER);
        assert!(script.is_read());
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        let cut = &CLIENT[..20];
        assert!(matches!(read_client(&mut Script::new(&[cut])), Err(ServeError::Io(_))));
        for (at, byte) in [(4, b'.'), (5, b'+'), (10, b'g'), (30, 0), (51, b'0'), (12, 0xff)] {
            let mut bytes = CLIENT.to_vec();
            bytes[at] = byte;
            let refused = read_client(&mut Script::new(&[&bytes]));
            assert!(matches!(refused, Err(ServeError::Malformed { .. })), "{at}");
        }
        let own = Dest { qpn: 1, psn: 2, gid: gid() };
        let undone = answer(&mut Script::new(&[b"done!"]), &own);
        assert!(matches!(undone, Err(ServeError::Malformed { .. })));
    }
}

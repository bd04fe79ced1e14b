//! The exchange of rdma-core's pingpong programs (`libibverbs/examples/*_pingpong.c`): each side
//! says `LID:QPN:PSN:GID` in hexadecimal, with a NUL, the client first; then the client says `done`.

use std::io::{Read, Write};
use std::net::Ipv6Addr;

use super::exchange::{ExchangeError, gid_of_hex, hex_of_gid};

/// Bytes of an end's message: 4, 6, 6 and 32 digits, three colons, a NUL.
const MESSAGE_BYTES: usize = 52;

/// One end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First PSN that it sends, 24 bits.
    pub psn: u32,
    pub gid: Ipv6Addr,
}

impl End {
    fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        let text = str::from_utf8(bytes.strip_suffix(&[0])?).ok()?;
        let mut parts = text.split(':');
        // The LID, which RoCE does not have.
        let [_, qpn, psn] = [4, 6, 6].map(|digits| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            part.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(part, 16).ok())?
        });
        let gid = gid_of_hex(parts.next()?)?;
        parts.next().is_none().then_some(Self { qpn: qpn?, psn: psn?, gid })
    }

    fn emit(&self) -> Vec<u8> {
        format!("{:04x}:{:06x}:{:06x}:{}\0", 0, self.qpn, self.psn, hex_of_gid(self.gid)).into()
    }
}

/// Reads the client's end.
pub fn read_client(stream: &mut impl Read) -> Result<End, ExchangeError> {
    let mut bytes = [0; MESSAGE_BYTES];
    stream.read_exact(&mut bytes)?;
    End::parse(&bytes).ok_or_else(|| ExchangeError::malformed("an end", &bytes))
}

/// Tells the client our end, which must be able to receive by now, and waits for its `done`.
pub fn answer(stream: &mut (impl Read + Write), own: &End) -> Result<(), ExchangeError> {
    stream.write_all(&own.emit())?;
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes)?;
    if bytes == *b"done\0" { Ok(()) } else { Err(ExchangeError::malformed("'done'", &bytes)) }
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
        assert_eq!(client, End { qpn: 0x12, psn: 0xa7e088, gid: gid() });
        answer(&mut script, &End { qpn: 0x11, psn: 0xaa5b4f, gid: gid() }).unwrap();
        assert_eq!(script.answers, SERVER);
        assert!(script.is_read());
    }

    #[test]
    fn what_is_no_end_is_refused() {
        let cut = &CLIENT[..20];
        assert!(matches!(read_client(&mut Script::new(&[cut])), Err(ExchangeError::Io(_))));
        for (at, byte) in [(4, b'.'), (5, b'+'), (10, b'g'), (30, 0), (51, b'0'), (12, 0xff)] {
            let mut bytes = CLIENT.to_vec();
            bytes[at] = byte;
            let refused = read_client(&mut Script::new(&[&bytes]));
            assert!(matches!(refused, Err(ExchangeError::Malformed { .. })), "{at}");
        }
        let own = End { qpn: 1, psn: 2, gid: gid() };
        let undone = answer(&mut Script::new(&[b"done!"]), &own);
        assert!(matches!(undone, Err(ExchangeError::Malformed { .. })));
    }
}

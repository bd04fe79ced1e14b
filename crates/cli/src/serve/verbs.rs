//! A verbs peer: it executes the requests of a test's driver, line by line. The protocol is that of
//! `interop/verbs_peer.c`, the same peer over libibverbs.

use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::str::SplitAsciiWhitespace;
use std::sync::Arc;
use std::time::Duration;

use bellpush::mem::Dma;
use bellpush::nic::soft::SoftNic;
use bellpush::nic::{Access, Change, Mtu, NicAddress, QpType};
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::wqe::Opcode;

use super::end::{End, Peer, Side, Work, immediate};
use super::exchange::{ServeError, address_of, gid_of, gid_of_hex, hex_of_gid};

/// Largest memory of a driver.
const MAX_BYTES: usize = 64 << 20;
/// Longest line.
const MAX_LINE: u64 = 512;
/// Longest wait that a driver may request.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Request {
    Open { bytes: usize },
    Region { offset: usize, bytes: usize, access: Access },
    Qp(QpType),
    Connect { address: IpAddr, qpn: u32, psn: u32, mtu: Mtu, with: Change },
    Fill { offset: usize, bytes: usize, seed: u64 },
    Check { offset: usize, bytes: usize, seed: u64 },
    Put { offset: usize, value: u64 },
    Get { offset: usize },
    Recv { offset: usize, bytes: usize },
    Post(Work),
    Poll { side: Side, timeout: Duration },
    State,
}

/// The words of a line.
struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    /// Parses a number in C's notation.
    fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let word = self.word()?;
        let value = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        T::try_from(value.ok()?).ok()
    }
}

impl Request {
    fn parse(line: &str) -> Option<Self> {
        let mut words = Words(line.split_ascii_whitespace());
        let request = Self::of(&mut words)?;
        words.word().is_none().then_some(request)
    }

    fn of(w: &mut Words) -> Option<Self> {
        Some(match w.word()? {
            "open" => Self::Open { bytes: w.number()? },
            "region" => {
                let (offset, bytes, rights) = (w.number()?, w.number()?, w.word()?);
                let access = Access {
                    local_write: true,
                    remote_write: rights.contains('w'),
                    remote_read: rights.contains('r'),
                    remote_atomic: rights.contains('a'),
                    ..Access::NONE
                };
                Self::Region { offset, bytes, access }
            }
            "qp" => Self::Qp(match w.word()? {
                "rc" => QpType::Rc,
                "uc" => QpType::Uc,
                "ud" => QpType::Ud,
                _ => return None,
            }),
            "connect" => {
                let address = address_of(gid_of_hex(w.word()?)?);
                let (qpn, psn) = (w.number()?, w.number()?);
                let mtu = Mtu::new(w.number()?)?;
                let with = Change {
                    timeout: Some(w.number()?),
                    retry_cnt: Some(w.number()?),
                    rnr_retry: Some(w.number()?),
                    min_rnr_timer: Some(w.number()?),
                    ..Change::default()
                };
                Self::Connect { address, qpn, psn, mtu, with }
            }
            "fill" => Self::Fill { offset: w.number()?, bytes: w.number()?, seed: w.number()? },
            "check" => Self::Check { offset: w.number()?, bytes: w.number()?, seed: w.number()? },
            "put" => Self::Put { offset: w.number()?, value: w.number()? },
            "get" => Self::Get { offset: w.number()? },
            "recv" => Self::Recv { offset: w.number()?, bytes: w.number()? },
            "post" => Self::Post(Work {
                opcode: match w.word()? {
                    "write" => Opcode::RdmaWrite,
                    "write_imm" => Opcode::RdmaWriteImm,
                    "read" => Opcode::RdmaRead,
                    "send" => Opcode::Send,
                    "send_imm" => Opcode::SendImm,
                    "fetch_add" => Opcode::AtomicFa,
                    "cmp_swap" => Opcode::AtomicCs,
                    _ => return None,
                },
                offset: w.number()?,
                bytes: w.number()?,
                addr: w.number()?,
                rkey: w.number()?,
                a: w.number()?,
                b: w.number()?,
            }),
            "poll" => Self::Poll {
                side: match w.word()? {
                    "send" => Side::Send,
                    "recv" => Side::Recv,
                    _ => return None,
                },
                timeout: Duration::from_millis(w.number()?).min(MAX_WAIT),
            },
            "state" => Self::State,
            _ => return None,
        })
    }
}

/// Serves one driver until it closes the connection.
///
/// # Errors
/// [`ServeError::Io`]; the driver is told the errors of its requests.
pub fn serve(
    nic: &Arc<SoftNic>,
    address: IpAddr,
    mut lines: impl BufRead,
    mut out: impl Write,
) -> Result<(), ServeError> {
    let mut end = None;
    loop {
        let mut line = String::new();
        if std::io::Read::take(&mut lines, MAX_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match Request::parse(&line) {
            Some(request) => run(nic, address, &mut end, request),
            None => Err(ServeError::malformed("no request", line.trim_end().as_bytes())),
        };
        match answer {
            Ok(words) if words.is_empty() => writeln!(out, "ok")?,
            Ok(words) => writeln!(out, "ok {words}")?,
            Err(e) => writeln!(out, "error {e}")?,
        }
        out.flush()?;
    }
}

/// Executes a request; returns the text that follows `ok` in the answer.
fn run(
    nic: &Arc<SoftNic>,
    address: IpAddr,
    end: &mut Option<End>,
    request: Request,
) -> Result<String, ServeError> {
    if let Request::Open { bytes } = request {
        if end.is_some() || !(1..=MAX_BYTES).contains(&bytes) {
            return Err(ServeError::malformed("no request", b"open: once, up to 64 MiB"));
        }
        let end = end.insert(End::open(nic, bytes)?);
        let gid = hex_of_gid(gid_of(address));
        return Ok(format!("{gid} {:#x} {:#x}", end.mr.iova.0, end.mr.rkey.0));
    }
    let unopened = || ServeError::malformed("a request before", b"open");
    let end = end.as_mut().ok_or_else(unopened)?;
    let none = Ok(String::new());
    match request {
        Request::Open { .. } => none,
        Request::Region { offset, bytes, access } => {
            let mr = end.region(offset, bytes, access)?;
            Ok(format!("{:#x} {:#x}", mr.iova.0, mr.rkey.0))
        }
        Request::Qp(kind) => {
            let local = end.new_qp(kind)?;
            debug_assert!(matches!(local.nic, NicAddress::Ip(_)), "the NIC is on a packet link");
            Ok(format!("{:#x} {:#x}", local.qpn.0, local.psn.value()))
        }
        Request::Connect { address, qpn, psn, mtu, with } => {
            end.connect(Peer { address, qpn, psn }, mtu, with)?;
            none
        }
        Request::Fill { offset, bytes, seed } => {
            end.memory.part(offset, bytes)?.write(0, &pattern(seed, bytes))?;
            none
        }
        Request::Check { offset, bytes, seed } => {
            let mut found = vec![0; bytes.min(end.memory.len())];
            end.memory.part(offset, bytes)?.read(0, &mut found)?;
            let wanted = pattern(seed, bytes);
            match found.iter().zip(&wanted).position(|(found, wanted)| found != wanted) {
                None => none,
                Some(at) => Err(ServeError::Byte { at, is: found[at], want: wanted[at] }),
            }
        }
        Request::Put { offset, value } => {
            end.memory.part(offset, 8)?.write(0, &value.to_ne_bytes())?;
            none
        }
        Request::Get { offset } => {
            let mut word = [0; 8];
            end.memory.part(offset, 8)?.read(0, &mut word)?;
            Ok(format!("{:#x}", u64::from_ne_bytes(word)))
        }
        Request::Recv { offset, bytes } => {
            end.post_recv(offset, bytes)?;
            none
        }
        Request::Post(work) => {
            end.post(&work)?;
            none
        }
        Request::Poll { side, timeout } => Ok(match end.poll(side, timeout)? {
            None => "none".into(),
            Some(cqe) if cqe.opcode.is_error() => format!("{} 0 0", status(&cqe)),
            Some(cqe) => format!("0 {} {:#x}", cqe.byte_cnt, immediate(&cqe)),
        }),
        // Between SQD (4) and ERR, ibv_qp_state has SQE, which is not used here.
        Request::State => Ok(match end.state()? as u32 {
            state @ 0..=4 => state.to_string(),
            _ => "6".into(),
        }),
    }
}

/// `ibv_wc_status` of an error CQE, as in libmlx5.
fn status(cqe: &Cqe) -> u32 {
    use Syndrome as S;
    match S::from_code(cqe.syndrome) {
        Some(S::LocalLength) => 1,
        Some(S::LocalQpOp) => 2,
        Some(S::LocalProt) => 4,
        Some(S::WrFlush) => 5,
        Some(S::MwBind) => 6,
        Some(S::BadResp) => 7,
        Some(S::LocalAccess) => 8,
        Some(S::RemoteInvalReq) => 9,
        Some(S::RemoteAccess) => 10,
        Some(S::RemoteOp) => 11,
        Some(S::TransportRetryExc) => 12,
        Some(S::RnrRetryExc) => 13,
        Some(S::RemoteAborted) => 16,
        None => 21, // IBV_WC_GENERAL_ERR
    }
}

/// A seed's pattern: splitmix64 of seed and word, little endian.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |i: u64| {
        let mut x = (seed << 32 | i).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31).to_le_bytes()
    };
    (0..).flat_map(word).take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_the_peer_in_c_reads_them() {
        assert_eq!(Request::parse("open 4096\n"), Some(Request::Open { bytes: 4096 }));
        let connect = "connect 00000000000000000000ffff0a2f0002 0x12 0xa7e088 1024 14 7 6 12\r\n";
        let with = Change {
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(6),
            min_rnr_timer: Some(12),
            ..Change::default()
        };
        let (address, mtu) = ("10.47.0.2".parse().unwrap(), Mtu::new(1024).unwrap());
        let wanted = Request::Connect { address, qpn: 0x12, psn: 0xa7e088, mtu, with };
        assert_eq!(Request::parse(connect), Some(wanted));
        assert_eq!(
            Request::parse("post cmp_swap 0 8 0x7f00 0x1 18446744073709551615 2"),
            Some(Request::Post(Work {
                opcode: Opcode::AtomicCs,
                offset: 0,
                bytes: 8,
                addr: 0x7f00,
                rkey: 1,
                a: u64::MAX,
                b: 2
            }))
        );
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for line in [
            "",
            "open",
            "open 1 2",
            "open -1",
            "qp xrc",
            "connect ::1 1 2 1024 14 7 6 12",
            "connect 00000000000000000000ffff0a2f0002 1 2 1000 14 7 6 12",
            "connect 00000000000000000000ffff0a2f0002 1 2 1024 256 7 6 12",
            "post nop 0 0 0 0 0 0",
            "post write 0 0 0 0x100000000 0 0",
            "poll both 1",
        ] {
            assert_eq!(Request::parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_pattern_is_the_one_of_the_peer_in_c() {
        // splitmix64's first output for the state 0.
        assert_eq!(pattern(0, 8), 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
        assert_ne!(pattern(1, 8), pattern(0, 8));
        assert_eq!(pattern(7, 20)[..13], pattern(7, 13));
    }
}

//! The server's side of perftest's exchange over TCP (perftest 4.5-0.17 of Debian 12, which reports
//! version 6.06: `src/perftest_communication.c`).
//!
//! The order is: version (16 bytes), cycle buffer and cache line (4 bytes each, big endian), path
//! MTU (2 characters); each side's [`Keys`], several times, as a barrier; if only the client
//! measures, its [`Report`]; finally `done`. Both sides send each item, the client first.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::nic::soft::SoftNic;
use bellpush::nic::{Change, Mtu, QpType};

use super::end::{DEPTH, End, MAX_READS, Peer, Side, good};
use super::exchange::{ServeError, address_of, gid_of};

/// Bytes of the memory that the client writes, reads or sends to; perftest's largest message is 8
/// MiB.
const MEMORY: usize = 16 << 20;
/// Longest pause of a client in a SEND test.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of an end's keys, NUL included: `KEY_MSG_SIZE_GID`.
const KEYS_BYTES: usize = 108;
const VERSION_BYTES: usize = 16;
/// Message that ends the exchange.
const DONE: &[u8; 5] = b"done\0";

/// An end's queue pair and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// READs that the end may have outstanding.
    pub out_reads: u32,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First PSN that the end sends, 24 bits.
    pub psn: u32,
    pub rkey: u32,
    /// Address of the end's memory.
    pub addr: u64,
    pub gid: Ipv6Addr,
}

impl Keys {
    /// `LID:reads:QPN:PSN:rkey:address:` 16 bytes of GID, each with a colon, `SRQN:`.
    fn parse(bytes: &[u8; KEYS_BYTES]) -> Option<Self> {
        let text = bytes.split(|&b| b == 0).next()?;
        let mut parts = str::from_utf8(text).ok()?.split(':');
        let mut number = |most: u64| {
            let part = parts.next().filter(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))?;
            u64::from_str_radix(part, 16).ok().filter(|&number| number <= most)
        };
        number(0xffff)?; // the LID, which RoCE does not have
        let [out_reads, qpn, psn, rkey] = [0xffff, 0xff_ffff, 0xff_ffff, u32::MAX.into()]
            .map(|most| number(most).map(|n| n as u32));
        let addr = number(u64::MAX)?;
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = number(0xff)? as u8;
        }
        number(u32::MAX.into())?; // an SRQ number, for XRC
        let gid = gid.into();
        Some(Self { out_reads: out_reads?, qpn: qpn?, psn: psn?, rkey: rkey?, addr, gid })
    }

    fn emit(&self) -> [u8; KEYS_BYTES] {
        let Self { out_reads, qpn, psn, rkey, addr, gid } = self;
        let mut text = format!("0000:{out_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{addr:016x}:");
        gid.octets().iter().for_each(|byte| text.push_str(&format!("{byte:02x}:")));
        text.push_str("00000000:");
        let mut bytes = [0; KEYS_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }
}

/// The client's measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Bytes per message.
    pub bytes: u64,
    pub iterations: u64,
    /// Bandwidth in MB (2^20 bytes) per second.
    pub average: f64,
}

/// An exchange with one client.
pub struct Exchange<S> {
    stream: S,
}

impl<S: Read + Write> Exchange<S> {
    /// Exchanges version, buffer sizes and path MTU; the result is the smaller MTU.
    pub fn greet(stream: S, own: Mtu) -> Result<(Self, Mtu), ServeError> {
        let mut this = Self { stream };
        // The client's version, cycle buffer and cache line are returned unchanged.
        this.echo::<VERSION_BYTES>()?;
        this.echo::<4>()?;
        this.echo::<4>()?;
        // A digit of `enum ibv_mtu`: 1 for 256 bytes, 5 for 4096.
        let digit = |mtu: Mtu| b'1' + Mtu::ALL.iter().position(|m| *m == mtu).unwrap_or(0) as u8;
        let theirs: [u8; 2] = this.read()?;
        let mtu = Mtu::ALL.into_iter().find(|mtu| theirs == [digit(*mtu), 0]);
        let mtu = mtu.ok_or_else(|| ServeError::malformed("a path MTU", &theirs))?;
        this.stream.write_all(&[digit(own), 0])?;
        Ok((this, mtu.min(own)))
    }

    /// Reads the client's keys.
    pub fn read_keys(&mut self) -> Result<Keys, ServeError> {
        let bytes = self.read()?;
        Keys::parse(&bytes).ok_or_else(|| ServeError::malformed("keys", &bytes))
    }

    /// Sends our keys to the client.
    pub fn write_keys(&mut self, own: &Keys) -> Result<(), ServeError> {
        Ok(self.stream.write_all(&own.emit())?)
    }

    /// A barrier: a further exchange of keys.
    pub fn barrier(&mut self, own: &Keys) -> Result<(), ServeError> {
        self.read_keys()?;
        self.write_keys(own)
    }

    /// Reads the client's report and returns it as ours, which the client ignores.
    pub fn report(&mut self) -> Result<Report, ServeError> {
        let bytes = u64::from_be_bytes(self.echo()?);
        let iterations = u64::from_be_bytes(self.echo()?);
        let [_peak, average, _rate] = [self.echo()?, self.echo()?, self.echo()?];
        Ok(Report { bytes, iterations, average: f64::from_be_bytes(average) })
    }

    /// A barrier or the end, as the client chooses. Returns whether it was a barrier.
    pub fn barrier_or_done(&mut self, own: &Keys) -> Result<bool, ServeError> {
        let first: [u8; DONE.len()] = self.read()?;
        if first == *DONE {
            self.stream.write_all(DONE)?;
            return Ok(false);
        }
        let mut bytes = [0; KEYS_BYTES];
        bytes[..DONE.len()].copy_from_slice(&first);
        self.stream.read_exact(&mut bytes[DONE.len()..])?;
        Keys::parse(&bytes).ok_or_else(|| ServeError::malformed("keys", &bytes))?;
        self.write_keys(own)?;
        Ok(true)
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], ServeError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn echo<const N: usize>(&mut self) -> Result<[u8; N], ServeError> {
        let bytes = self.read()?;
        self.stream.write_all(&bytes)?;
        Ok(bytes)
    }
}

/// The client's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    Write,
    Read,
    Send,
}

/// Serves one client of RC, one queue pair, one direction.
///
/// # Errors
/// [`ServeError`] for a failure of the exchange or of a receive.
pub fn serve(
    nic: &Arc<SoftNic>,
    address: IpAddr,
    test: Test,
    mtu: Mtu,
    stream: TcpStream,
) -> Result<String, ServeError> {
    let (mut exchange, mtu) = Exchange::greet(stream, mtu)?;
    let client = exchange.read_keys()?;
    let mut end = End::open(nic, MEMORY)?;
    let local = end.new_qp(QpType::Rc)?;
    let own = Keys {
        out_reads: client.out_reads.min(MAX_READS),
        qpn: local.qpn.0,
        psn: local.psn.value(),
        rkey: end.mr.rkey.0,
        addr: end.mr.iova.0,
        gid: gid_of(address),
    };
    if test == Test::Send {
        // As in perftest, receives share their memory.
        for _ in 0..DEPTH {
            end.post_recv(0, MEMORY)?;
        }
    }
    let peer = Peer { address: address_of(client.gid), qpn: client.qpn, psn: client.psn };
    end.connect(peer, mtu, Change { min_rnr_timer: Some(12), ..Change::default() })?;
    exchange.write_keys(&own)?;
    exchange.barrier(&own)?;
    exchange.barrier(&own)?;
    if test == Test::Send {
        // A barrier before and after each size, and one more.
        let (mut messages, mut bytes) = (0, 0);
        while exchange.barrier_or_done(&own)? {
            let (more, length) = receive(&mut end, &exchange.stream)?;
            (messages, bytes) = (messages + more, bytes + length);
        }
        return Ok(format!("{messages} messages, {bytes} bytes received"));
    }
    // The client measures, and continues the exchange afterwards.
    exchange.barrier(&own)?;
    let Report { bytes, iterations, average } = exchange.report()?;
    exchange.barrier(&own)?;
    if exchange.barrier_or_done(&own)? {
        return Err(ServeError::malformed("no 'done' but", b"keys"));
    }
    Ok(format!("{iterations} messages of {bytes} bytes, {average:.2} MB/s as the client has it"))
}

/// Receives until the client sends something over TCP. Returns the numbers of messages and bytes.
fn receive(end: &mut End, stream: &TcpStream) -> Result<(u64, u64), ServeError> {
    let (mut messages, mut bytes) = (0, 0);
    let mut last = Instant::now();
    loop {
        while let Some(cqe) = end.poll(Side::Recv, Duration::from_millis(2))? {
            let cqe = good("a receive", cqe)?;
            (messages, bytes, last) =
                (messages + 1, bytes + u64::from(cqe.byte_cnt), Instant::now());
            end.post_recv(0, MEMORY)?;
        }
        if is_readable(stream)? {
            return Ok((messages, bytes));
        }
        if last.elapsed() > SEND_TIMEOUT {
            return Err(ServeError::Timeout { what: "a receive", timeout: SEND_TIMEOUT });
        }
    }
}

fn is_readable(stream: &TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::script::Script;
    use super::*;

    /// ib_write_bw -n 10 -s 4096 of perftest 4.5-0.17 on rxe, both ways.
    const GREETING: &[u8] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00\x10\x00\x00\x00\x00@5\0";
    const CLIENT: &[u8; KEYS_BYTES] =
        b"0000:0001:000015:ea3477:00000634:000055cbcdef3000:00:00:00:00:\
        00:00:00:00:00:00:ff:ff:0a:2f:00:02:00000000:\0";
    const SERVER: &[u8; KEYS_BYTES] =
        b"0000:0001:000016:bb3d51:0000078a:000056365934d000:00:00:00:00:\
        00:00:00:00:00:00:ff:ff:0a:2f:00:02:00000000:\0";
    const REPORT: &[u8] = b"\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\n\
        @J\xb6\xc3\xa4\xabwL@;L\t\xfe\xdc'\xd6?|\x9f}r\x97 \x17";

    fn own() -> Keys {
        Keys {
            out_reads: 1,
            qpn: 0x16,
            psn: 0xbb3d51,
            rkey: 0x78a,
            addr: 0x5636_5934_d000,
            gid: "::ffff:10.47.0.2".parse().unwrap(),
        }
    }

    #[test]
    fn a_recorded_exchange_is_answered_as_the_stock_server_did() {
        let keys: &[u8] = CLIENT;
        let script = Script::new(&[GREETING, keys, keys, REPORT, b"done\0"]);
        let (mut exchange, mtu) = Exchange::greet(script, Mtu::MAX).unwrap();
        assert_eq!(mtu, Mtu::MAX);
        let client = exchange.read_keys().unwrap();
        let gid = own().gid;
        let (qpn, psn, rkey, addr) = (0x15, 0xea3477, 0x634, 0x55cb_cdef_3000);
        assert_eq!(client, Keys { out_reads: 1, qpn, psn, rkey, addr, gid });
        exchange.write_keys(&own()).unwrap();
        exchange.barrier(&own()).unwrap();
        let report = exchange.report().unwrap();
        assert_eq!((report.bytes, report.iterations), (4096, 10));
        assert!((report.average - 27.297).abs() < 0.001, "{}", report.average);
        assert!(!exchange.barrier_or_done(&own()).unwrap());
        let Exchange { stream: script } = exchange;
        let keys: &[u8] = SERVER;
        assert_eq!(script.answers, [GREETING, keys, keys, REPORT, b"done\0"].concat());
        assert!(script.is_read());
    }

    #[test]
    fn barriers_go_on_until_the_client_is_done() {
        let keys: &[u8] = CLIENT;
        let mut exchange = Exchange { stream: Script::new(&[keys, keys, DONE]) };
        let said: Vec<_> = (0..3).map(|_| exchange.barrier_or_done(&own()).unwrap()).collect();
        assert_eq!(said, [true, true, false]);
        let keys: &[u8] = SERVER;
        assert_eq!(exchange.stream.answers, [keys, keys, DONE].concat());
        let mut neither = Exchange { stream: Script::new(&[&[b'x'; KEYS_BYTES]]) };
        assert!(matches!(neither.barrier_or_done(&own()), Err(ServeError::Malformed { .. })));
    }

    #[test]
    fn the_smaller_path_mtu_holds() {
        let small = [&GREETING[..24], b"3\0".as_slice()].concat();
        let (_, mtu) = Exchange::greet(Script::new(&[&small]), Mtu::MAX).unwrap();
        assert_eq!(mtu.bytes(), 1024);
        let (_, mtu) = Exchange::greet(Script::new(&[GREETING]), Mtu::ALL[1]).unwrap();
        assert_eq!(mtu.bytes(), 512);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let wrong_mtu = [&GREETING[..24], b"6\0".as_slice()].concat();
        let refused = Exchange::greet(Script::new(&[&wrong_mtu]), Mtu::MAX);
        assert!(matches!(refused, Err(ServeError::Malformed { .. })));
        for (at, byte) in [(4, b'.'), (9, b'1'), (17, b'-'), (60, 0), (100, b'x'), (50, 0xff)] {
            let mut bytes = *CLIENT;
            bytes[at] = byte;
            assert_eq!(Keys::parse(&bytes), None, "{at}");
        }
        let mut cut = Exchange { stream: Script::new(&[&CLIENT[..107]]) };
        assert!(matches!(cut.read_keys(), Err(ServeError::Io(_))));
    }
}

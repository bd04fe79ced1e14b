//! Captures: packets in a file that Wireshark reads.
//!
//! Classic pcap with nanoseconds (magic 0xa1b23c4d; the pcap file format's Internet-Draft,
//! draft-ietf-opsawg-pcap) and link type Ethernet. A NIC's packets have neither Ethernet nor, on
//! some links, IP headers: those are made up around them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use bellpush_mem::hidden::Hidden;
use bellpush_wire::roce::{Addresses, Envelope, ICRC_BYTES, MAX_IP_UDP_BYTES, icrc};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{AccessFlags, access};

const MAGIC_NS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
const SNAP_BYTES: u32 = 65535;
const ETHERNET_BYTES: usize = 14;
const BUFFER_BYTES: usize = 256 << 10;
/// What is recorded reaches the file before packets that are so much later.
const FLUSH_NS: u64 = 100_000_000;

/// A capture file that is written to. Flushed when dropped.
pub struct Pcap {
    out: BufWriter<Kept>,
    flushed_ns: u64,
}

impl Pcap {
    /// Makes the file, or empties the one that is there. It holds payload, so it is for its owner
    /// alone. Neither a link is followed nor another user's file taken: in a directory that others
    /// can write to, such as `/tmp`, they could have the capture written where they want it. A named pipe needs its
    /// reader first.
    ///
    /// # Errors
    /// The system's; `ENXIO` for a named pipe without a reader.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, create(path)?);
        out.write_all(&MAGIC_NS.to_le_bytes())?;
        out.write_all(&[2, 0, 4, 0])?; // version 2.4
        out.write_all(&[0; 8])?; // UTC
        out.write_all(&SNAP_BYTES.to_le_bytes())?;
        out.write_all(&LINKTYPE_ETHERNET.to_le_bytes())?;
        out.flush()?; // an empty capture is one, too
        Ok(Self { out, flushed_ns: 0 })
    }

    /// Records a packet, BTH to ICRC, at a time in nanoseconds since 1970. With `fill_icrc`, the
    /// ICRC is computed for a packet that came over a link without.
    ///
    /// # Errors
    /// The system's.
    pub fn record(
        &mut self,
        at_ns: u64,
        envelope: &Envelope,
        packet: &[u8],
        fill_icrc: bool,
    ) -> io::Result<()> {
        let mut ip = [0; MAX_IP_UDP_BYTES];
        let body = packet.len().saturating_sub(ICRC_BYTES);
        let filled = (fill_icrc && body >= bellpush_wire::roce::BTH_BYTES)
            .then(|| icrc(envelope, &packet[..body]).to_le_bytes());
        let (body, tail) = match &filled {
            Some(icrc) => (&packet[..body], &icrc[..]),
            None => (packet, &[][..]),
        };
        let ip_bytes = envelope.emit(&[body, tail], &mut ip);
        let bytes = (ETHERNET_BYTES + ip_bytes + packet.len()) as u32;
        let (s, ns) = (at_ns / 1_000_000_000, at_ns % 1_000_000_000);
        for word in [s as u32, ns as u32, bytes, bytes] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.write_all(&ethernet(envelope.addresses))?;
        self.out.write_all(&ip[..ip_bytes])?;
        self.out.write_all(body)?;
        self.out.write_all(tail)?;
        self.pass(at_ns)
    }

    /// Says what time it is, so that what was recorded reaches the file although nothing follows.
    ///
    /// # Errors
    /// The system's.
    pub fn pass(&mut self, at_ns: u64) -> io::Result<()> {
        if at_ns.saturating_sub(self.flushed_ns) < FLUSH_NS || self.out.buffer().is_empty() {
            return Ok(());
        }
        self.flushed_ns = at_ns;
        self.out.flush()
    }
}

/// Makes a file for its owner alone, or empties the one that is there.
///
/// # Errors
/// As [`Pcap::create`].
pub(crate) fn create(path: &Path) -> io::Result<Kept> {
    Ok(Kept(Hidden::new(open(path)?)))
}

/// Tries whether [`Pcap::create`], or a recording, could write there, and changes nothing. The file where there is one:
/// a named pipe's reader, which would see its end, stays for as long as that is open.
///
/// # Errors
/// As [`Pcap::create`].
pub fn try_place(path: &Path) -> io::Result<Option<File>> {
    match open_as_it_is(path, false) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            access(folder.unwrap_or(Path::new(".")), AccessFlags::W_OK | AccessFlags::X_OK)?;
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = open_as_it_is(path, true)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    // A pipe to a program that reads along is as it is.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(file)
}

fn open_as_it_is(path: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(create).truncate(false).mode(0o600);
    // Who opens a named pipe would wait for its reader, and a device's engine with it.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() && meta.uid() != nix::unistd::geteuid().as_raw() {
        let why = "there is a file of another user's";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(file)
}

/// The file, as long as the program around us has left it alone.
pub(crate) struct Kept(Hidden<File>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.0.is_there() {
            return Err(io::Error::other("the program has closed the file"));
        }
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // nothing is held back
    }
}

/// An Ethernet header between locally administered addresses that end in those of IP.
fn ethernet(addresses: Addresses) -> [u8; ETHERNET_BYTES] {
    let (dst, src) = (mac(addresses.dst()), mac(addresses.src()));
    let [high, low] = match addresses {
        Addresses::V4 { .. } => [0x08, 0x00],
        Addresses::V6 { .. } => [0x86, 0xdd],
    };
    let mut header = [0; ETHERNET_BYTES];
    header[..6].copy_from_slice(&dst);
    header[6..12].copy_from_slice(&src);
    header[12..].copy_from_slice(&[high, low]);
    header
}

fn mac(addr: IpAddr) -> [u8; 6] {
    let tail = match addr {
        IpAddr::V4(addr) => addr.octets(),
        IpAddr::V6(addr) => *addr.octets().last_chunk().expect("16 bytes"),
    };
    [2, 0, tail[0], tail[1], tail[2], tail[3]]
}

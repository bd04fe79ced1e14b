//! `bellpush decode`'s arguments, input and output.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bellpush_cli::decode::{
    DecodeError, Form, Item, Kind, Link, Live, Options, QueueType, bytes_of, decode, is_queue,
};
use bellpush_cli::report::human::printable;
use rustix::fs::OFlags;

use crate::cli::{CliError, UNVERIFIED};
use crate::values;

/// Most bytes of a capture or recording; a dump in hex has at most 64 MiB.
const MOST_OF_A_FILE: u64 = 1 << 30;
const MOST_OF_A_DUMP: u64 = 256 << 20;

/// Hex may be xxd's, hexdump -C's, tcpdump's or gdb's, a list with 0x, or digits. Its words are taken as the devices
/// have them, most significant byte first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 nothing is wrong, 1 something is, 2 it cannot be decoded.\n\
                        An error CQE that is right has status 0: it is explained."
)]
pub struct DecodeArgs {
    /// What there is to decode
    what: Kind,
    /// The file, or - for stdin; of what is live, the recording
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Take the input for hex [default: hex if it is text]
    #[arg(long, conflicts_with = "binary")]
    hex: bool,
    /// Take the input as it is
    #[arg(long)]
    binary: bool,
    /// Words of hex are a little-endian host's, as gdb and plain hexdump print them
    #[arg(long)]
    host_words: bool,
    /// Index of the first WQE, or of the first CQE since the CQ was made
    #[arg(long, value_name = "N", visible_alias = "index", value_parser = number)]
    wqe_index: Option<u32>,
    /// log2 of the queue's size in basic blocks of 64 bytes, or of the CQ's entries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=24))]
    queue_log: Option<u32>,
    /// Queue that WQEs are of [default: a send queue, which one their segments tell]
    #[arg(long, value_name = "QUEUE")]
    qp: Option<QueueType>,
    /// Bytes of a WQE of a receive queue [default: all that there are, one WQE]
    #[arg(long, value_name = "BYTES", value_parser = stride)]
    stride: Option<usize>,
    /// Bytes of a CQE in its ring [default: 64]
    #[arg(long, value_name = "BYTES", value_parser = ["64", "128"])]
    cqe_bytes: Option<String>,
    /// WQEs or CQEs have signatures: check them
    #[arg(long)]
    signed: bool,
    /// Doorbells and records are a CQ's
    #[arg(long)]
    cq: bool,
    /// The whole send queue that a doorbell or record is about
    #[arg(long, value_name = "FILE")]
    sq: Option<PathBuf>,
    /// The doorbell record that a doorbell goes with
    #[arg(long, value_name = "FILE")]
    dbr: Option<PathBuf>,
    /// What a packet begins with [default: its bytes tell]
    #[arg(long, value_name = "HEADER")]
    link: Option<Link>,
    /// Of what is live: seconds until it ends
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86400))]
    seconds: Option<u32>,
    /// Of what is live: things until it ends
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Of what is live: the queue pair that is looked at [default: all, and packets]
    #[arg(long, value_name = "QPN", value_parser = number)]
    qpn: Option<u32>,
    /// Of what is live: begin with what is there already
    #[arg(long)]
    all: bool,
    /// A line for each, without fields
    #[arg(long, conflicts_with = "json")]
    brief: bool,
    /// JSON: a list
    #[arg(long)]
    json: bool,
}

/// Bytes of a WQE of a receive queue: a power of two of data segments of 16.
fn stride(text: &str) -> Result<usize, String> {
    let bytes = number(text)? as usize;
    match bytes.is_power_of_two() && (16..=4096).contains(&bytes) {
        true => Ok(bytes),
        false => Err("a power of two from 16 to 4096".into()),
    }
}

/// A number, in hex with 0x.
fn number(text: &str) -> Result<u32, String> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|e| e.to_string())
}

/// What some options are for.
const LIVE: &str = "'decode live'";

/// What would mend an input of a kind that cannot be decoded.
fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::Pcap => "pcap, pcapng and ERF can be decoded, uncompressed",
        Kind::Record | Kind::Live => "name a file that 'bellpush run --record' wrote",
        _ => "docs/decode.md has the forms of hex, and what options say of the bytes",
    }
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, CliError> {
    values::read_at_most(path, most).map_err(|e| CliError::new(e, "name a file that can be read"))
}

impl DecodeArgs {
    /// Refuses options that would change nothing: who gives one expects something of it.
    fn check(&self) -> Result<(), CliError> {
        let kind = self.what;
        let receives = matches!(self.qp, Some(QueueType::Recv | QueueType::Srq));
        let live = kind == Kind::Live;
        let in_memory = !matches!(kind, Kind::Pcap | Kind::Record | Kind::Live);
        let (wqe, cqe) = (kind == Kind::Wqe, kind == Kind::Cqe);
        let (doorbell, dbr) = (kind == Kind::Doorbell, kind == Kind::Dbr);
        let sends = wqe && !receives;
        let used = [
            ("--hex", self.hex, in_memory, "bytes of memory and packets"),
            ("--binary", self.binary, in_memory, "bytes of memory and packets"),
            ("--host-words", self.host_words, in_memory && !self.binary, "hex"),
            ("--wqe-index", self.wqe_index.is_some(), sends || cqe, "WQEs to send and CQEs"),
            ("--queue-log", self.queue_log.is_some(), sends || cqe, "WQEs to send and CQEs"),
            ("--qp", self.qp.is_some(), wqe, "WQEs"),
            ("--stride", self.stride.is_some(), wqe && receives, "WQEs with --qp recv or srq"),
            ("--cqe-bytes", self.cqe_bytes.is_some(), cqe, "CQEs"),
            (
                "--signed",
                self.signed,
                sends || cqe || live || kind == Kind::Record,
                "WQEs to send, CQEs and recordings",
            ),
            ("--cq", self.cq, doorbell || dbr, "doorbells and their records"),
            (
                "--sq",
                self.sq.is_some(),
                (doorbell || dbr) && !self.cq,
                "doorbells and records of a queue pair",
            ),
            ("--dbr", self.dbr.is_some(), doorbell, "doorbells"),
            ("--seconds", self.seconds.is_some(), live, LIVE),
            ("--count", self.count.is_some(), live, LIVE),
            ("--qpn", self.qpn.is_some(), live, LIVE),
            ("--all", self.all, live, LIVE),
            ("--link", self.link.is_some(), kind == Kind::Packet, "packets without a capture"),
        ];
        if let Some((name, .., of)) = used.iter().find(|(_, given, takes, _)| *given && !takes) {
            let what = format!("{name} is for {of} only");
            return Err(CliError::new(what, "leave it out, or see 'bellpush decode --help'"));
        }
        if cqe && self.wqe_index.is_some() != self.queue_log.is_some() {
            let what = "a CQE's lap needs both --wqe-index and --queue-log";
            return Err(CliError::new(what, "give both, or none"));
        }
        Ok(())
    }

    /// An input, or another file, that cannot be decoded.
    fn unread(&self, file: &Path, what: impl std::fmt::Display) -> CliError {
        CliError::new(format!("{}: {what}", file.display()), remedy(self.what))
    }

    fn options(&self) -> Result<Options, CliError> {
        let form = match (self.hex, self.binary) {
            (true, _) => Form::Hex,
            (_, true) => Form::Binary,
            _ => Form::Guess,
        };
        let plain = Options {
            form,
            host_words: self.host_words,
            index: self.wqe_index,
            queue_log: self.queue_log,
            queue: self.qp.unwrap_or(QueueType::Guess),
            stride: self.stride,
            cqe_bytes: if self.cqe_bytes.as_deref() == Some("128") { 128 } else { 64 },
            signed: self.signed,
            cq: self.cq,
            link: self.link.unwrap_or(Link::Guess),
            ..Options::default()
        };
        // Other files have a form of their own.
        let guess = Options { form: Form::Guess, ..plain.clone() };
        let other = |path: &Path| {
            let bytes = read(path, MOST_OF_A_DUMP)?;
            bytes_of(&bytes, &guess).map_err(|e| self.unread(path, e))
        };
        let sq = self.sq.as_deref().map(other).transpose()?;
        if let (Some(sq), Some(path)) = (&sq, &self.sq) {
            is_queue(sq).map_err(|e| self.unread(path, e))?;
        }
        let record = |path: &Path| {
            <[u8; 8]>::try_from(other(path)?).map_err(|bytes| {
                self.unread(path, format!("{} bytes are no doorbell record of 8", bytes.len()))
            })
        };
        Ok(Options { sq, record: self.dbr.as_deref().map(record).transpose()?, ..plain })
    }
}

pub fn run(args: &DecodeArgs) -> Result<ExitCode, CliError> {
    args.check()?;
    let options = args.options()?;
    let kind = args.what;
    if kind == Kind::Live {
        return live(args, &options);
    }
    let is_file = matches!(kind, Kind::Pcap | Kind::Record);
    let bytes = read(&args.file, if is_file { MOST_OF_A_FILE } else { MOST_OF_A_DUMP })?;
    let mut out = Out::new(args);
    let decoded = decode(kind, &bytes, &options, &mut |item| out.item(&item));
    // Of what cannot be decoded one line says why.
    out.capture &= decoded.is_ok();
    let wrong = out.finish()?;
    decoded.map_err(|e| args.unread(&args.file, e))?;
    Ok(if wrong { ExitCode::from(UNVERIFIED) } else { ExitCode::SUCCESS })
}

/// How long nothing new in a recording is waited for before it is looked at again.
const NAP: Duration = Duration::from_millis(10);
/// Bytes of a recording that are read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Seconds until it ends, unless `--seconds` says how many.
const SECONDS: u32 = 10;

/// Follows a recording that is being written.
fn live(args: &DecodeArgs, options: &Options) -> Result<ExitCode, CliError> {
    if args.file.as_os_str() == "-" {
        let what = "'decode live' follows a file, and stdin is none";
        return Err(CliError::new(what, "name the recording: 'bellpush decode live FILE'"));
    }
    let named = |e: io::Error| args.unread(&args.file, e);
    // A FIFO that nobody writes to would be waited for.
    let at_once = OFlags::NONBLOCK.bits() as i32;
    let mut file =
        File::options().read(true).custom_flags(at_once).open(&args.file).map_err(named)?;
    let there = file.metadata().map_err(named)?;
    if !there.is_file() {
        return Err(args.unread(&args.file, "not a file that a device's recording grows in"));
    }
    let until = Instant::now() + Duration::from_secs(args.seconds.unwrap_or(SECONDS).into());
    let (mut out, mut live) = (Out::new(args), Live::new(options, args.qpn));
    // What was there before is read for what it tells of queues.
    let (mut at, shown_from) = (0, if args.all { 0 } else { there.len() });
    let mut bytes = vec![0; PIECE_BYTES];
    let (mut more, mut left, mut failed) = (true, args.count.unwrap_or(u64::MAX), None);
    while more && !live.is_closed() && Instant::now() < until {
        let most = if at < shown_from { shown_from - at } else { PIECE_BYTES as u64 };
        let piece = &mut bytes[..most.min(PIECE_BYTES as u64) as usize];
        let read = file.read(piece).map_err(named)?;
        if read == 0 {
            if file.metadata().map_err(named)?.len() < at {
                failed = Some(DecodeError("it has become shorter".into()));
                break;
            }
            more = out.flush();
            std::thread::sleep(NAP);
            continue;
        }
        let shown = at >= shown_from;
        at += read as u64;
        let mut each = |item: Item| {
            left -= u64::from(shown);
            !shown || (out.item(&item) && left > 0)
        };
        match live.feed(&piece[..read], &mut each) {
            Ok(wanted) => more = wanted,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let is_silent = out.items == 0;
    let wrong = out.finish()?;
    match failed {
        Some(error) => Err(args.unread(&args.file, error)),
        // Status 0 would read as if all were right. stderr may be closed.
        None if is_silent => {
            let what = "nothing was decoded until the end";
            let _ = writeln!(io::stderr(), "bellpush: {}: {what}", args.file.display());
            Ok(ExitCode::SUCCESS)
        }
        None => Ok(if wrong { ExitCode::from(UNVERIFIED) } else { ExitCode::SUCCESS }),
    }
}

/// Items, as they come.
struct Out {
    to: BufWriter<io::StdoutLock<'static>>,
    json: bool,
    brief: bool,
    /// Whether a capture of which nothing was judged is told of.
    capture: bool,
    items: u64,
    packets: u64,
    roce: u64,
    wrong: bool,
    failed: Option<io::Error>,
}

impl Out {
    fn new(args: &DecodeArgs) -> Self {
        let to = BufWriter::new(io::stdout().lock());
        Self {
            to,
            json: args.json,
            brief: args.brief,
            capture: args.what == Kind::Pcap,
            items: 0,
            packets: 0,
            roce: 0,
            wrong: false,
            failed: None,
        }
    }

    fn write(&mut self, item: &Item) -> io::Result<()> {
        if self.json {
            self.to.write_all(if self.items == 0 { b"[\n" } else { b",\n" })?;
            return serde_json::to_writer(&mut self.to, &item.json()).map_err(io::Error::from);
        }
        for line in item.text(self.brief).lines() {
            writeln!(self.to, "{}", printable(line))?;
        }
        Ok(())
    }

    /// Whether more is wanted.
    fn item(&mut self, item: &Item) -> bool {
        self.failed = self.write(item).err();
        self.items += 1;
        self.packets += u64::from(item.kind == "packet");
        self.roce += u64::from(item.is_roce());
        self.wrong |= !item.wrong.is_empty();
        self.failed.is_none()
    }

    /// Has what was written be seen; whether somebody reads it.
    fn flush(&mut self) -> bool {
        if self.failed.is_none() {
            self.failed = self.to.flush().err();
        }
        self.failed.is_none()
    }

    /// Whether something was wrong. A closed pipe is no error: who reads along has seen enough.
    fn finish(mut self) -> Result<bool, CliError> {
        let end = match (self.json, self.items) {
            (true, 0) => "[]\n",
            (true, _) => "\n]\n",
            (false, _) => "",
        };
        let failed = match self.failed {
            Some(error) => Some(error),
            None => self.to.write_all(end.as_bytes()).and_then(|()| self.to.flush()).err(),
        };
        match failed {
            Some(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::new(format!("cannot write all of it: {e}"), "make room"))
            }
            _ => {
                // Status 0 would read as if all of them were right.
                if self.capture && self.roce == 0 {
                    let what = match self.packets {
                        0 => "the capture has no packets".to_owned(),
                        packets => format!("0 of {packets} packets are RoCEv2"),
                    };
                    // stderr may be closed
                    let _ = writeln!(io::stderr(), "bellpush: {what}: nothing was judged");
                }
                Ok(self.wrong)
            }
        }
    }
}

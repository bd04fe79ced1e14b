//! A recording in words.

use std::io::{self, Write};

use super::event::{Call, Event, Outcome, Tail};
use super::reader::{Recording, RecordingError};
use bellpush_wire::roce::{Packet, Syndrome};

/// Bytes that a line shows.
const SHOWN: usize = 64;

fn hex(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > SHOWN { format!("{shown}... ({} bytes)", bytes.len()) } else { shown }
}

fn tail(tail: Tail) -> String {
    format!("{} bytes, XXH3 {:016x}", tail.len, tail.hash)
}

/// A packet: opcode, queue pair, PSN, what it answers, lengths.
pub(super) fn packet(bytes: &[u8], payload: Option<u32>) -> String {
    // One whose payload is elsewhere ends with its headers: put something in the payload's place.
    let len = payload.map_or(0, |len| len.min(u16::MAX.into()) as usize);
    let mut whole = bytes.to_vec();
    if payload.is_some() {
        whole.resize(bytes.len() + len.next_multiple_of(4) + 4, 0);
    }
    let Ok(packet) = Packet::parse(&whole) else { return format!("malformed {}", hex(bytes)) };
    let (bth, ext) = (&packet.headers.bth, &packet.headers.ext);
    let opcode = packet.opcode();
    let mut line = format!(
        "{} {:?} to {:#x}, PSN {}, {} bytes",
        format!("{:?}", opcode.service()).to_uppercase(),
        opcode.operation(),
        bth.dest.0,
        bth.psn.value(),
        packet.payload.len()
    );
    if let Some(aeth) = ext.aeth {
        match aeth.syndrome {
            Syndrome::Ack { .. } => line += &format!(", ACK, MSN {}", aeth.msn),
            other => line += &format!(", {other:?}, MSN {}", aeth.msn),
        }
    }
    if let Some(reth) = ext.reth {
        line += &format!(", {} bytes at {:#x} of {:#x}", reth.bytes, reth.addr.0, reth.rkey.0);
    }
    line
}

fn call(call: &Call) -> String {
    format!("call {call:?}")
}

/// An event in a line.
pub(super) fn event(event: &Event<'_>) -> String {
    match event {
        Event::Call(it) => call(it),
        Event::Done(Outcome::Done) => "  done".into(),
        Event::Done(outcome) => format!("  done: {outcome:?}"),
        Event::Step { now_ns } => {
            format!("step at {}.{:09} s", now_ns / 1_000_000_000, now_ns % 1_000_000_000)
        }
        Event::Word { region, offset, value, nth, .. } => {
            let again = if *nth > 0 {
                format!(" (load {} of it)", u64::from(*nth) + 1)
            } else {
                String::new()
            };
            format!("  loads {value:#x} at {offset:#x} of memory {region}{again}")
        }
        Event::Read { region, offset, bytes } => {
            format!(
                "  reads {} bytes at {offset:#x} of memory {region}: {}",
                bytes.len(),
                hex(bytes)
            )
        }
        Event::ReadHashed { region, offset, tail: it } => {
            format!("  reads at {offset:#x} of memory {region}: {}", tail(*it))
        }
        Event::Wrote { region, offset, bytes } => {
            format!(
                "  writes {} bytes at {offset:#x} of memory {region}: {}",
                bytes.len(),
                hex(bytes)
            )
        }
        Event::WroteHashed { region, offset, tail: it } => {
            format!("  writes at {offset:#x} of memory {region}: {}", tail(*it))
        }
        Event::Changed { region, offset, add, operands: [first, second], old } => {
            let how = match add {
                true => format!("adds {first:#x}"),
                false => format!("swaps for {second:#x} if it is {first:#x}"),
            };
            format!("  {how} at {offset:#x} of memory {region}, which was {old:#x}")
        }
        Event::Faulted { region, offset, len } => {
            format!("  finds no memory: {len} bytes at {offset:#x} of memory {region}")
        }
        Event::Came { envelope, bytes, payload, sound } => {
            let odd = if *sound { "" } else { ", bad ICRC" };
            format!("  gets {} from {}{odd}", packet(bytes, *payload), envelope.addresses.src())
        }
        Event::Went { to, bytes, payload, .. } => {
            format!("  sends {} at {to}", packet(bytes, *payload))
        }
        Event::Full { left } => format!("  the link takes no more; {left} packets wait"),
        Event::Up(up) => format!("  the port is {}", if *up { "up" } else { "down" }),
        Event::Port { port, granted } => {
            let answer = if *granted { "may" } else { "may not" };
            format!("  {answer} send from UDP port {port}")
        }
        Event::Told(event) => format!("  tells {event:?}"),
        Event::Closed => "the device is closed".into(),
    }
}

/// Writes a recording in words, an event a line.
///
/// # Errors
/// [`RecordingError`].
pub fn show(recording: Vec<u8>, out: &mut dyn Write) -> Result<(), RecordingError> {
    let recording = Recording::of(recording)?;
    writeln!(out, "{:?}", recording.header)?;
    for event in recording.events() {
        let line = self::event(&event?);
        match writeln!(out, "{line}") {
            // Who reads along has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}

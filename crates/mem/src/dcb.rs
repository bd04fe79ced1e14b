//! Priorities of an interface by its driver, which rtnetlink alone tells: `RTM_GETDCB` of Linux' uapi/linux/dcbnl.h.
//! To ask needs no privilege.
//!
//! What answers is the system, and what it says is checked as if anybody had written it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// `NLMSG_ERROR` and `RTM_GETDCB`.
const ERROR: u16 = 2;
const GET_DCB: u16 = 78;
/// Commands: PFC of CEE, whether it is on, all of IEEE 802.1Qaz.
const CEE_PFC: u8 = 7;
const CEE_PFC_STATE: u8 = 14;
const IEEE: u8 = 21;
/// Attributes of an answer (`DCB_ATTR_*`).
const IFNAME: u16 = 1;
const PFC_STATE: u16 = 3;
const PFC_CONFIG: u16 = 4;
const IEEE_NEST: u16 = 13;
const DCBX: u16 = 14;
/// Within `IEEE_NEST` (`DCB_ATTR_IEEE_*`), and of a table's entries.
const ETS: u16 = 1;
const PFC: u16 = 2;
const APP_TABLE: u16 = 3;
const APP: u16 = 1;
/// Within `PFC_CONFIG`: priority 0, of eight that follow each other, and the wish for all.
const PRIORITY_0: u16 = 1;
const ALL_PRIORITIES: u16 = 9;
/// `IEEE_8021QAZ_APP_SEL_DSCP`, and how many DSCPs there are.
const DSCP: u8 = 5;
const DSCPS: u16 = 64;
/// Place of `prio_tc` in `struct ieee_ets`.
const PRIO_TC: usize = 3 + 3 * 8;
/// Bytes of `struct nlmsghdr`, and with `struct dcbmsg` behind it.
const HEADER: usize = 16;
const MESSAGE: usize = HEADER + 4;
/// Longest answer: the system makes none of more than 8 KiB.
const MOST: usize = 16 << 10;
/// Messages that are looked at for an answer: others' go to others.
const TURNS: usize = 4;
/// Longest wait for an answer. Within `send` the system asks the driver, which asks the card, and has answered when that
/// returns; no time of ours bounds what a card takes that does not answer its driver.
const PATIENCE: Duration = Duration::from_millis(500);

/// How an interface treats priorities (IEEE 802.1Q). What its driver does not tell is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dcb {
    /// `DCB_CAP_DCBX_*`: who speaks DCBX, the host (bit 0) or the card (bit 1).
    pub dcbx: Option<u8>,
    /// A bit for each priority with PFC (IEEE 802.1Qbb).
    pub pfc: Option<u8>,
    /// The traffic class, a queue of the card, of each priority.
    pub queues: Option<[u8; 8]>,
    /// Priorities by DSCP. The kernel's mlx5 trusts DSCP while there is one, and else the priority of a VLAN's tag.
    pub dscp: Option<BTreeMap<u8, u8>>,
    /// Entries that `dscp` is without: of a DSCP above 63, or a priority above 7.
    pub odd_dscps: usize,
}

/// What an interface's driver says of priorities.
///
/// # Errors
/// The system's: `ENODEV` where no interface has the name, `EOPNOTSUPP` where its driver knows none of it, as that of a
/// virtual function. [`ErrorKind::InvalidData`] for an answer that is none.
pub fn ask(interface: &str) -> io::Result<Dcb> {
    let mut dcb = answer(&call(interface, IEEE, &[])?)?;
    if dcb.pfc.is_none() {
        let all = attribute(PFC_CONFIG, &attribute(ALL_PRIORITIES, &[]));
        // What CEE has not, nobody has.
        let [config, state] = [(CEE_PFC, &all[..]), (CEE_PFC_STATE, &[])]
            .map(|(command, with)| call(interface, command, with).ok());
        dcb.pfc = config.and_then(|config| cee_pfc(&config, state.as_deref()));
    }
    Ok(dcb)
}

/// What the system's answer to a question about IEEE 802.1Qaz says.
///
/// # Errors
/// [`ErrorKind::InvalidData`] for bytes that are no such answer.
pub fn answer(message: &[u8]) -> io::Result<Dcb> {
    parsed(message).ok_or_else(|| ErrorKind::InvalidData.into())
}

fn parsed(message: &[u8]) -> Option<Dcb> {
    let top = attributes(message.get(MESSAGE..)?)?;
    let ieee = attributes(find(&top, IEEE_NEST)?)?;
    let flags = |of: &[u8]| of.get(1).copied();
    let (dscp, odd_dscps) = optional(find(&ieee, APP_TABLE), dscps)?.unzip();
    Some(Dcb {
        dcbx: optional(find(&top, DCBX), |it| it.first().copied())?,
        pfc: optional(find(&ieee, PFC), flags)?,
        queues: optional(find(&ieee, ETS), queues)?,
        dscp,
        odd_dscps: odd_dscps.unwrap_or(0),
    })
}

/// `prio_tc` of `struct ieee_ets`; there are eight traffic classes.
fn queues(ets: &[u8]) -> Option<[u8; 8]> {
    let queues: [u8; 8] = *ets.get(PRIO_TC..)?.first_chunk()?;
    queues.iter().all(|queue| *queue < 8).then_some(queues)
}

/// Of a table of `struct dcb_app` the entries of DSCPs, and how many of them say what is none. Of several for one DSCP
/// the highest priority counts, as it does where the kernel looks one up.
fn dscps(table: &[u8]) -> Option<(BTreeMap<u8, u8>, usize)> {
    let (mut all, mut odd) = (BTreeMap::new(), 0);
    for (_, app) in attributes(table)?.into_iter().filter(|(kind, _)| *kind == APP) {
        let [selector, priority, low, high] = *app.first_chunk()?;
        let dscp = u16::from_ne_bytes([low, high]);
        if selector != DSCP {
            continue;
        }
        if dscp >= DSCPS || priority >= 8 {
            odd += 1;
            continue;
        }
        let kept = all.entry(dscp as u8).or_insert(priority);
        *kept = priority.max(*kept);
    }
    Some((all, odd))
}

/// The priorities of a CEE configuration, none of them where PFC is off.
fn cee_pfc(config: &[u8], state: Option<&[u8]>) -> Option<u8> {
    let state =
        state.and_then(|state| find(&attributes(state.get(MESSAGE..)?)?, PFC_STATE)?.first());
    if state == Some(&0) {
        return Some(0);
    }
    let top = attributes(config.get(MESSAGE..)?)?;
    let all = attributes(find(&top, PFC_CONFIG)?)?;
    (0..8).try_fold(0, |bits, priority| {
        let is_on = *find(&all, PRIORITY_0 + priority)?.first()? != 0;
        Some(bits | u8::from(is_on) << priority)
    })
}

/// What is not there is none, what is there and does not parse is wrong.
fn optional<T>(bytes: Option<&[u8]>, parse: impl Fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    match bytes {
        None => Some(None),
        Some(bytes) => parse(bytes).map(Some),
    }
}

fn find<'a>(attributes: &[(u16, &'a [u8])], wanted: u16) -> Option<&'a [u8]> {
    attributes.iter().find(|(kind, _)| *kind == wanted).map(|(_, payload)| *payload)
}

/// Attributes, each a length, a kind and its bytes, up to a multiple of 4. `None` where a length leads out.
fn attributes(mut bytes: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut all = Vec::new();
    while let [a, b, c, d, ..] = *bytes {
        let (length, kind) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let length = usize::from(length);
        // The upper two bits of a kind are flags.
        all.push((kind & 0x3fff, bytes.get(4..length)?));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    bytes.is_empty().then_some(all)
}

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() + 4) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A message: header, command, attributes.
fn message(command: u8, attributes: &[u8]) -> Vec<u8> {
    const REQUEST: u16 = 1;
    let length = (MESSAGE + attributes.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([GET_DCB, REQUEST].map(u16::to_ne_bytes).concat());
    bytes.extend([u32::from(command), 0].map(u32::to_ne_bytes).concat()); // the command is the answer's number, too
    bytes.extend([libc::AF_UNSPEC as u8, command, 0, 0]);
    bytes.extend(attributes);
    bytes
}

/// Asks, and waits for the answer.
fn call(interface: &str, command: u8, with: &[u8]) -> io::Result<Vec<u8>> {
    // The system's names are shorter, and a part of a longer one is another's.
    if interface.len() >= libc::IFNAMSIZ || interface.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut attributes = attribute(IFNAME, &[interface.as_bytes(), b"\0"].concat());
    attributes.extend(with);
    let question = message(command, &attributes);
    let socket = socket()?;
    // SAFETY: reads the question; whom it goes to is the kernel without an address.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), question.as_ptr().cast(), question.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    for _ in 0..TURNS {
        let (bytes, sender) = receive(&socket)?;
        if sender != 0 {
            continue;
        }
        if let Some(answer) = taken(&bytes, command) {
            return answer;
        }
    }
    Err(ErrorKind::InvalidData.into())
}

/// A message if it answers the command, or the error that the system answers with.
fn taken(bytes: &[u8], command: u8) -> Option<io::Result<Vec<u8>>> {
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let length = word(0)? as usize;
    let bytes = bytes.get(..length)?;
    if length < MESSAGE || word(8)? != u32::from(command) {
        return None;
    }
    match u16::from_ne_bytes([bytes[4], bytes[5]]) {
        ERROR => {
            let error = (word(HEADER)? as i32).wrapping_neg();
            Some(Err(match error {
                1..4096 => io::Error::from_raw_os_error(error),
                _ => ErrorKind::InvalidData.into(),
            }))
        }
        GET_DCB => Some(Ok(bytes.to_vec())),
        _ => None,
    }
}

/// A socket to the kernel that waits no longer than [`PATIENCE`].
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor.
    let made = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(made) };
    let patience = libc::timeval {
        tv_sec: PATIENCE.as_secs() as libc::time_t,
        tv_usec: PATIENCE.subsec_micros() as libc::suseconds_t,
    };
    // SAFETY: reads a time of the length that it is told.
    let set = unsafe {
        libc::setsockopt(
            made,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            size_of_val(&patience) as libc::socklen_t,
        )
    };
    if set == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// The next message, and the number of who sent it: 0 is the kernel.
fn receive(socket: &OwnedFd) -> io::Result<(Vec<u8>, u32)> {
    let mut bytes = vec![0; MOST];
    // SAFETY: all zeros are an address.
    let mut from: libc::sockaddr_nl = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: writes MOST bytes and an address at most, and reports more with MSG_TRUNC.
    let received = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_TRUNC,
            (&raw mut from).cast(),
            &raw mut length,
        )
    };
    match usize::try_from(received) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(received) if received > MOST => Err(ErrorKind::InvalidData.into()),
        Ok(received) => {
            bytes.truncate(received);
            Ok((bytes, from.nl_pid))
        }
    }
}

#[cfg(test)]
#[path = "dcb_tests.rs"]
mod tests;

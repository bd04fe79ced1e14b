//! Counters that an interface's driver has beside those of /sys, pause frames among them: `ETHTOOL_GSTATS` of Linux'
//! uapi/linux/ethtool.h.

use std::collections::BTreeMap;
use std::io;
use std::mem::zeroed;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Commands: how many names a set has, the names, the counters.
const COUNT: u32 = 0x37;
const NAMES: u32 = 0x1b;
const VALUES: u32 = 0x1d;
/// `ETH_SS_STATS`: the counters' names.
const SET: u32 = 1;
/// `ETH_GSTRING_LEN`.
const NAME_BYTES: usize = 32;
/// Most counters. A card with many queues has some thousands.
const MOST: usize = 1 << 15;

/// All counters of an interface by their names, each in the unit that its driver's name for it says (frames, bytes), since
/// the driver began to count.
///
/// # Errors
/// The system's: `ENODEV` where no interface has the name, `EOPNOTSUPP` where its driver has no counters.
pub fn counters(interface: &str) -> io::Result<BTreeMap<String, u64>> {
    let counted = call(interface, [COUNT, 0, 1 << SET], 24)?;
    // The set's bit stays where it has names.
    let count = if word(&counted, 8) & 1 << SET == 0 { 0 } else { word(&counted, 16) as usize };
    if count == 0 || count > MOST {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // The system writes none where they are not as many as it is told; older ones write all that there are then,
    // so there is room for as many as any card has.
    let names = call(interface, [NAMES, SET, count as u32], 12 + MOST * NAME_BYTES)?;
    let values = call(interface, [VALUES, count as u32, 0], 8 + MOST * 8)?;
    Ok(paired(&names, &values))
}

/// Has the system carry out a command, which begins with these words; what it has written then.
fn call(interface: &str, command: [u32; 3], bytes: usize) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?; // any socket takes the call
    // SAFETY: all zeros are a request.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte stays 0; the system's names are shorter, and a part of a longer one is another's.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    let mut buffer = vec![0_u64; bytes.div_ceil(8)];
    let [first, second, third] = command.map(u32::to_ne_bytes);
    let two = |a: [u8; 4], b: [u8; 4]| u64::from_ne_bytes([a, b].concat().try_into().expect("8"));
    [buffer[0], buffer[1]] = [two(first, second), two(third, [0; 4])];
    request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
    // SAFETY: reads the name, and reads and writes the buffer as the command has it: as many names or counters as there
    // are, MOST at most.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    match done {
        0 => Ok(buffer.into_iter().flat_map(u64::to_ne_bytes).collect()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A word of what the system wrote; 0 behind its end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_ne_bytes(word.try_into().expect("4")))
}

/// Names and counters as two calls have written them.
fn paired(names: &[u8], values: &[u8]) -> BTreeMap<String, u64> {
    let many = word(names, 8).min(word(values, 4)) as usize;
    let names = names.get(12..).unwrap_or_default().chunks_exact(NAME_BYTES);
    let values = values.get(8..).unwrap_or_default().as_chunks::<8>().0;
    let named = names.zip(values).take(many).map(|(name, value)| {
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        (String::from_utf8_lossy(name).trim().to_owned(), u64::from_ne_bytes(*value))
    });
    named.filter(|(name, _)| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    /// What the two calls write.
    fn written(all: &[(&str, u64)], named: u32, counted: u32) -> (Vec<u8>, Vec<u8>) {
        let mut names: Vec<u8> = [NAMES, SET, named].map(u32::to_ne_bytes).concat();
        let mut values: Vec<u8> = [VALUES, counted].map(u32::to_ne_bytes).concat();
        for (name, value) in all {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(NAME_BYTES, 0);
            names.extend(bytes);
            values.extend(value.to_ne_bytes());
        }
        (names, values)
    }

    #[test]
    fn names_and_counters_go_together() {
        let long = "a_name_that_fills_all_of_its_32B";
        assert_eq!(long.len(), NAME_BYTES);
        let all = [("rx_prio3_pause", 7), (long, 1), ("", 3)];
        let (names, values) = written(&all, 3, 3);
        let found = paired(&names, &values);
        assert_eq!((found.len(), found["rx_prio3_pause"], found[long]), (2, 7, 1), "{found:?}");
        // The driver has lost some between the calls, or says of more than it has written.
        let (names, values) = written(&all, 1, 3);
        assert_eq!(paired(&names, &values).len(), 1);
        let (names, values) = written(&all, u32::MAX, u32::MAX);
        assert_eq!(paired(&names, &values).len(), 2);
        assert!(paired(&[], &[]).is_empty() && paired(&names[..13], &values).is_empty());
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        let error = counters("nobody0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
        assert!(counters("lo").is_err(), "it has none");
        assert!(counters("").is_err() && counters("a name that is much too long").is_err());
    }

    /// A pair of interfaces in a network namespace of this thread's own: their driver counts.
    #[test]
    fn a_drivers_own_counters_are_read() {
        let in_own = thread::spawn(|| {
            // SAFETY: of this thread alone, which ends with the test.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return println!("SKIPPED: no right to make a network namespace");
            }
            let made = Command::new("ip")
                .args(["link", "add", "wire0", "type", "veth", "peer", "name", "wire1"])
                .status();
            if !made.is_ok_and(|status| status.success()) {
                return println!("SKIPPED: no `ip`, or no such interfaces");
            }
            let all = counters("wire0").expect("they have counters");
            assert!(all.get("peer_ifindex").is_some_and(|index| *index > 0), "{all:?}");
        });
        in_own.join().unwrap();
    }
}

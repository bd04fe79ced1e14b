//! Whose process is at the other end of a socket.

use std::fs;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// The user that stands for those who have no number here, where the system does not say.
const OVERFLOW: u32 = 65534;
/// Users that a namespace knows which knows them all.
const ALL: u64 = u32::MAX as u64;

/// Whether the process at the other end of a connected Unix socket is this process's user's: it had
/// this effective user when it connected, or when it began to listen.
///
/// In a user namespace, users who have no number there all have one in common (Linux's
/// `overflowuid`). A process that has it itself believes nobody.
pub fn is_this_user(socket: impl AsFd) -> bool {
    let Ok(peer) = sockopt::socket_peercred(&socket) else { return false };
    let user = nix::unistd::geteuid().as_raw();
    peer.uid.as_raw() == user && is_one(user, |file| fs::read_to_string(file).ok())
}

/// Whether a number is one user's, as files of `/proc` say. What they do not say, is not.
fn is_one(user: u32, read: impl Fn(&str) -> Option<String>) -> bool {
    let overflow = read("/proc/sys/kernel/overflowuid").and_then(|said| said.trim().parse().ok());
    if user != overflow.unwrap_or(OVERFLOW) {
        return true;
    }
    // Lines of first user here, first user outside, count.
    let map = read("/proc/self/uid_map").unwrap_or_default();
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.fold(0, u64::saturating_add) >= ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_that_stands_for_others_is_nobody_in_a_namespace() {
        let files = |overflow: &'static str, map: &'static str| {
            move |file: &str| {
                let said = if file.ends_with("overflowuid") { overflow } else { map };
                (!said.is_empty()).then(|| said.to_owned())
            }
        };
        let (all, one) =
            ("         0          0 4294967295\n", "      1000       1000          1\n");
        assert!(is_one(0, files("65534\n", one)));
        assert!(is_one(65534, files("65534\n", all)));
        assert!(!is_one(65534, files("65534\n", one)));
        assert!(!is_one(65534, files("65534\n", "0 100000 65536\n")));
        assert!(is_one(65534, files("99\n", one)));
        assert!(!is_one(99, files("99\n", "")));
        assert!(!is_one(65534, files("", "")));
    }
}

//! NUMA placement of host memory (Linux mbind(2)) and what sysfs says of nodes.

use std::fs;
use std::io;

use crate::MemError;

const MPOL_BIND: libc::c_int = 2;
const MPOL_MF_STRICT: libc::c_uint = 1;

/// Binds a fresh mapping to one node, before its pages are touched.
pub(crate) fn bind(addr: *mut u8, bytes: usize, node: usize) -> Result<(), MemError> {
    let mut mask = [0u64; 16]; // 1,024 nodes, the kernel's largest configuration
    let refused = |source| MemError::Bind { node, source };
    let word =
        mask.get_mut(node / 64).ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?;
    *word |= 1 << (node % 64);
    // SAFETY: mbind changes the placement policy of our own fresh mapping and reads `mask`, which
    // is as long as stated.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            addr,
            bytes,
            MPOL_BIND,
            mask.as_ptr(),
            mask.len() * 64,
            MPOL_MF_STRICT,
        )
    };
    if rc == 0 { Ok(()) } else { Err(refused(io::Error::last_os_error())) }
}

/// Number of NUMA nodes that have memory; 1 where sysfs does not say.
pub fn node_count() -> usize {
    let Ok(list) = fs::read_to_string("/sys/devices/system/node/has_memory") else { return 1 };
    count_list(list.trim()).max(1)
}

/// NUMA node of a PCI function such as `0000:17:00.0`; `None` where the platform does not say.
pub fn node_of_pci(address: &str) -> Option<usize> {
    let path = format!("/sys/bus/pci/devices/{}/numa_node", address.to_ascii_lowercase());
    fs::read_to_string(path).ok()?.trim().parse().ok() // "-1" does not parse: unknown
}

/// Counts a kernel list such as `0-3,7`.
fn count_list(list: &str) -> usize {
    let span = |part: &str| -> Option<usize> {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        let (a, b): (usize, usize) = (a.parse().ok()?, b.parse().ok()?);
        Some(b.checked_sub(a)? + 1)
    };
    list.split(',').filter_map(span).sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_are_counted() {
        for (list, nodes) in [("0", 1), ("0-1", 2), ("0-3,7", 5), ("", 0), ("3-1", 0)] {
            assert_eq!(super::count_list(list), nodes, "{list}");
        }
    }
}

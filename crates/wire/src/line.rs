//! Which line of a kernel posted a WQE, as device verbs say it that were compiled with `BELLPUSH_WHERE`
//! (`kernels/include/bellpush/where.cuh`).
//!
//! The control segment has the line in the place of a stream. The word that the remote address reserves is a digest of
//! the file's name, the line and the WQE's index. The format is bellpush's own; no specification has it.

use super::Qpn;
use super::seg::{CtrlSeg, DS_BYTES, RaddrSeg};

/// Stands for a file's name in WQEs: FNV-1a of the part of a path behind its last slash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileDigest(u32);

impl FileDigest {
    /// That of a file.
    pub fn of(path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or(path);
        Self(add(0x811c_9dc5, name.as_bytes()))
    }

    /// The line of this file that posted the WQE which begins with `wqe`, if that is one of the queue pair's with this
    /// index, and says so. Another WQE, one whose bytes are of two, or another file's, passes once in 2^32.
    pub fn line(self, wqe: &[u8], (qpn, index): (Qpn, u16)) -> Option<u16> {
        let (ctrl, rest) = wqe.split_at_checked(DS_BYTES)?;
        let ctrl: CtrlSeg = bytemuck::pod_read_unaligned(ctrl);
        let raddr: RaddrSeg = bytemuck::pod_read_unaligned(rest.get(..DS_BYTES)?);
        let line = u16::from_be_bytes(ctrl.dci_stream);
        let is_it = (ctrl.opmod_idx_opcode.get() >> 8) as u16 == index
            && ctrl.qpn_ds.get() >> 8 == qpn.0
            && raddr.reserved.get() == self.digest(line, index);
        (is_it && line != 0).then_some(line)
    }

    fn digest(self, line: u16, index: u16) -> u32 {
        add(add(self.0, &line.to_le_bytes()), &index.to_le_bytes())
    }
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::be::Be32;

    const QPN: Qpn = Qpn(0x12_3456);
    const INDEX: u16 = 0xfe01;

    /// A WQE's first two units.
    fn wqe(file: FileDigest, line: u16) -> Vec<u8> {
        let ctrl = CtrlSeg {
            opmod_idx_opcode: Be32::new(u32::from(INDEX) << 8 | 8),
            qpn_ds: Be32::new(QPN.0 << 8 | 3),
            dci_stream: line.to_be_bytes(),
            ..CtrlSeg::default()
        };
        let reserved = Be32::new(file.digest(line, INDEX));
        let raddr = RaddrSeg { reserved, ..RaddrSeg::default() };
        [bytemuck::bytes_of(&ctrl), bytemuck::bytes_of(&raddr)].concat()
    }

    #[test]
    fn a_digest_is_of_the_name_alone() {
        assert_eq!(FileDigest::of("a"), FileDigest(0xe40c_292c)); // FNV's own example
        assert_eq!(FileDigest::of("/x/y/put.cu"), FileDigest::of("put.cu"));
        assert_ne!(FileDigest::of("x/put.cuh"), FileDigest::of("put.cu"));
        assert_eq!(FileDigest::of("x/"), FileDigest::of(""));
    }

    #[test]
    fn a_line_is_told_of_its_own_wqe_alone() {
        let file = FileDigest::of("put.cu");
        let whole = wqe(file, 321);
        assert_eq!(file.line(&whole, (QPN, INDEX)), Some(321));
        for length in 0..whole.len() {
            assert_eq!(file.line(&whole[..length], (QPN, INDEX)), None, "{length} bytes");
        }
        assert_eq!(file.line(&whole, (QPN, INDEX + 1)), None);
        assert_eq!(file.line(&whole, (Qpn(QPN.0 + 1), INDEX)), None);
        assert_eq!(FileDigest::of("get.cu").line(&whole, (QPN, INDEX)), None);
        assert_eq!(file.line(&wqe(file, 0), (QPN, INDEX)), None, "no line");
        // Another's half.
        let other = wqe(file, 322);
        let halves = [&whole[..DS_BYTES], &other[DS_BYTES..]].concat();
        assert_eq!(file.line(&halves, (QPN, INDEX)), None);
        let silent = [whole[..DS_BYTES].to_vec(), vec![0; DS_BYTES]].concat();
        assert_eq!(file.line(&silent, (QPN, INDEX)), None);
    }
}

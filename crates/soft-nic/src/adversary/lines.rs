//! Lines of kernels that WQEs name, and the files that they are in.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::lock;
use bellpush_wire::Qpn;
use bellpush_wire::line::FileDigest;

/// A line of a kernel's source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as [`SoftNic::name_kernels`](crate::SoftNic::name_kernels) was told of it.
    pub file: Arc<str>,
    /// The line, from 1 on.
    pub line: u16,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The files whose lines are told.
#[derive(Default)]
pub(super) struct Files(Mutex<Vec<(FileDigest, Arc<str>)>>);

impl Files {
    pub(super) fn add(&self, path: &str) {
        let mut all = lock(&self.0);
        if !all.iter().any(|(_, known)| **known == *path) {
            all.push((FileDigest::of(path), path.into()));
        }
    }

    /// The line that posted a WQE. `None` where the WQE does not say it, nobody named its file, or several files have
    /// its name.
    pub(super) fn line(&self, wqe: &[u8], (qpn, index): (Qpn, u16)) -> Option<SourceLine> {
        let all = lock(&self.0);
        let line = |(digest, path): &(FileDigest, Arc<str>)| {
            digest.line(wqe, (qpn, index)).map(|line| SourceLine { file: path.clone(), line })
        };
        let mut found = all.iter().filter_map(line);
        found.next().filter(|_| found.next().is_none())
    }
}

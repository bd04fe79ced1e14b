//! Failures that kernels report, in memory that the host reads while they run.

use std::sync::atomic::Ordering;

use super::communicator::Inner;
use super::{Algorithm, Call, Dtype, Error, Op};
use crate::abi::collective::{CollCall, CollStatus, SHARED_STATUS};
use crate::mem::HostMem;
use crate::transport::Endpoint;

impl Inner {
    /// The failure that ended the communicator, if a kernel has reported one.
    pub fn end(&self) -> Result<Option<Error>, Error> {
        self.status_at(size_of::<CollStatus>())
    }

    pub fn has_ended(&self) -> bool {
        let code = |host: &HostMem| host.load_u32(size_of::<CollStatus>(), Ordering::Relaxed);
        code(self.status.host()).is_ok_and(|code| code != 0)
    }

    /// The failure that the kernels reported, if any.
    pub fn failure(&self) -> Result<Option<Error>, Error> {
        // The end of the communicator tells more than an earlier mismatch of calls.
        let end = self.end()?;
        let differs = self.status_at(0)?;
        if differs.is_some() {
            // Consumed: the next failure is reported again.
            self.state.copy_in(SHARED_STATUS, &[0; 4])?;
        }
        Ok(end.or(differs))
    }

    /// Consumes the report in one of the two places.
    fn status_at(&self, at: usize) -> Result<Option<Error>, Error> {
        let host = self.status.host();
        // Acquire: pairs with device code, which writes the reason before the code.
        let code = host.load_u32(at, Ordering::Acquire)?;
        if code == 0 {
            return Ok(None);
        }
        let mut raw = [0; size_of::<CollStatus>()];
        host.read(at, &mut raw)?;
        let status: CollStatus = bytemuck::pod_read_unaligned(&raw);
        host.write(at, &[0; size_of::<CollStatus>()])?;
        let (rank, call) = (status.rank, status.own.call);
        let ms = self.options.timeout.as_millis();
        Ok(Some(match code {
            2 => {
                let to_rank = |i: usize| i as u32 % self.ranks == rank;
                let ends = self.endpoints.iter().enumerate().filter(|(i, _)| to_rank(*i));
                let why = ends.flat_map(|(_, e)| e).find_map(Endpoint::failure);
                Error::Link { rank, call, why }
            }
            3 => match (call_of(&status.said), call_of(&status.own)) {
                (Some(theirs), Some(ours)) => Error::Mismatch { rank, call, theirs, ours },
                _ => Error::Corrupt { rank, call },
            },
            4 => Error::Late { rank, call },
            5 => Error::Corrupt { rank, call },
            _ => Error::Silent { rank, call, ms },
        }))
    }
}

/// The call that a rank reported; `None` for invalid numbers.
fn call_of(said: &CollCall) -> Option<Call> {
    Some(Call {
        count: said.count,
        dtype: Dtype::of(said.dtype)?,
        op: Op::of(said.op)?,
        algorithm: Algorithm::of(said.algorithm)?,
        channels: said.channels,
    })
}

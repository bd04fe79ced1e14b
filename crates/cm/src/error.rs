//! Why a call on an identifier is refused.

use std::net::IpAddr;

use crate::consumer::CmError;

/// What cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// `ENOENT`
    #[error("there is no such identifier or event channel")]
    Unknown,
    /// `EINVAL`
    #[error("the identifier belongs to another event channel")]
    OtherChannel,
    /// `EINVAL`
    #[error("the identifier's state does not allow it")]
    Stage,
    /// `EINVAL`
    #[error("{0}")]
    Value(&'static str),
    /// `EISCONN`
    #[error("the connection is established already")]
    Established,
    /// `EADDRINUSE`
    #[error("the port is taken")]
    InUse,
    /// `EADDRNOTAVAIL`
    #[error("no device of this process has the address {0}")]
    NotLocal(IpAddr),
    /// `ENODEV`
    #[error("no device of this process has an address of that family")]
    NoDevice,
    /// `EOPNOTSUPP`
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// `ENOMEM`
    #[error("there are too many identifiers or connections")]
    Full,
}

impl From<CmError> for IdError {
    fn from(error: CmError) -> Self {
        match error {
            CmError::Unknown | CmError::State => Self::Stage,
            CmError::Established => Self::Established,
            CmError::Full => Self::Full,
        }
    }
}

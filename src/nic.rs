//! NICs: what all have in common, the software NIC, and verbs devices.
//!
//! A NIC hands out memory regions, device-memory windows and queue pairs whose rings lie in memory
//! that the caller's GPU has mapped. It does not say who posts: a kernel, a stream or the CPU
//! write the same mlx5 bytes.

use std::sync::Arc;

#[cfg(feature = "mlx5")]
pub use bellpush_mlx5 as mlx5;
pub use bellpush_nic::*;
pub use bellpush_soft_nic as soft;

/// Opens a verbs device: `mlx5_0`, `mlx5_0:1` with its port, `mlx5_0:1:3` with its GID's index.
///
/// # Errors
/// One line that says what is missing.
#[cfg(feature = "mlx5")]
pub fn open_verbs(name: &str) -> Result<Arc<dyn Nic>, NicError> {
    Ok(mlx5::Mlx5Nic::open(&name.parse()?)?)
}

/// As with the feature `mlx5`, without which there are no verbs devices.
///
/// # Errors
/// [`NicError::NotBuilt`].
#[cfg(not(feature = "mlx5"))]
pub fn open_verbs(name: &str) -> Result<Arc<dyn Nic>, NicError> {
    Err(NicError::NotBuilt(name.into()))
}

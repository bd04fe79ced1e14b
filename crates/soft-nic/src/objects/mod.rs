//! What a program holds of a NIC.

pub(crate) mod cq;
pub(crate) mod events;
pub(crate) mod layout;
mod lows;
pub(crate) mod mkey;
pub(crate) mod moderation;
pub(crate) mod mr;
pub(crate) mod number;
pub(crate) mod pace;
pub(crate) mod qp;
pub(crate) mod qpns;
pub(crate) mod srq;
pub(crate) mod state;
pub(crate) mod tags;
pub(crate) mod xrc;

//! What a program writes for a NIC to find: from registers, rings and windows to checked requests.

pub(crate) mod inband;
pub(crate) mod recv;
pub(crate) mod sq;
pub(crate) mod turn;
pub(crate) mod uar;
pub(crate) mod umr;

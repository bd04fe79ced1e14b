//! Connection management: how two programs find each other's queue pairs.
//!
//! [`Cm`] is InfiniBand's connection manager (vol. 1, chapter 12) of one NIC: it exchanges messages
//! over queue pair 1 until both sides have a connection, or know that they have none. [`Ids`] is what
//! programs see of it: identifiers with addresses, ports and events, as Linux's rdma_cm has them.
//!
//! Neither sends nor waits. Messages that are to be sent and events come out of them, messages that
//! came and the time go in, so that tests can lose, double and reorder what they like. Every byte of
//! a message is hostile: it was checked by [`bellpush_wire::cm`], and here it must come from the peer
//! that it speaks of. Every wait ends: an answer that does not come is asked for a bounded number of
//! times.
//!
//! | file | what |
//! |---|---|
//! | `consumer` | what a consumer says and is told |
//! | `cm` | [`Cm`]: what a consumer asks for, and time |
//! | `connection` | a connection's state and its timer |
//! | `receive` | what messages do |
//! | `ids` `talk` | [`Ids`]: what programs ask for; what they and their peers say |
//! | `id` `link` | one identifier, and the attributes of its queue pair; what peers say of the connection |
//! | `error` | why a call is refused |
//! | `events` | what programs are told |
//! | `ports` | who has which port |
//! | `random` | numbers that peers cannot guess |

#![forbid(unsafe_code)]

mod cm;
mod connection;
mod consumer;
mod error;
mod events;
mod id;
mod ids;
mod link;
mod ports;
mod random;
mod receive;
mod talk;
#[cfg(test)]
mod tests;

pub use cm::Cm;
pub use connection::ConnId;
pub use consumer::{Accept, CmError, Connect, Event, Output, Request};
pub use error::IdError;
pub use events::{ConnParam, DatagramParam, EventKind, Param, UserEvent};
pub use id::{Address, Kind, Parameters, QpAttributes, Route, Space, Stage};
pub use ids::{ChannelId, DeviceInfo, Ids, Offer, Opt, Send};
pub use random::Random;
pub use talk::Facts;

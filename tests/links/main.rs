//! The packet links: one suite for all of them, what is each one's alone, and the model of the shared-memory ring.

mod every_link;
mod loom_shm;
mod shm;
mod suite;
mod udp;

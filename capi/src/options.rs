//! Options of a program, as JSON, and the header's enumerations.

use std::ffi::{CStr, c_int};
use std::net::IpAddr;

use bellpush::collective::{Dtype, Op};
use bellpush::wire::inband::LineFormat;
use serde::Deserialize;

use crate::job::Failure;

/// `bellpush_join`'s options, with the header's names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    pub executor: Executor,
    pub gpu: Option<usize>,
    pub path: String,
    pub line: LineFormat,
    pub link: Link,
    pub address: Addresses,
    pub nics: Option<usize>,
    pub algorithm: Option<String>,
    pub channels: Option<u32>,
    pub chunk_bytes: Option<u32>,
    pub name: String,
    pub join_timeout_s: f64,
    pub timeout_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Executor {
    Cuda,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    Shm,
    Udp,
}

/// One address, or a list.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Addresses {
    One(IpAddr),
    Many(Vec<IpAddr>),
}

impl Addresses {
    pub fn all(&self) -> &[IpAddr] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Many(all) => all,
        }
    }
}

impl Default for Addresses {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            executor: Executor::Cuda,
            gpu: None,
            path: "push/inband".into(),
            line: LineFormat::L12S4,
            link: Link::Shm,
            address: Addresses::default(),
            nics: None,
            algorithm: None,
            channels: None,
            chunk_bytes: None,
            name: String::new(),
            join_timeout_s: 300.0,
            timeout_s: 300.0,
        }
    }
}

/// `bellpush_open`'s options, with the header's names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenOptions {
    pub executor: Executor,
    pub gpu: Option<usize>,
    pub nic: String,
    pub link: Wire,
    pub address: Option<IpAddr>,
    pub name: Option<String>,
}

/// How far a software NIC reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    Process,
    Shm,
    Udp,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let (gpu, address, name) = (None, None, None);
        let (executor, link) = (Executor::Cuda, Wire::Process);
        Self { executor, gpu, nic: "soft".into(), link, address, name }
    }
}

/// `bellpush_endpoint_new`'s options, with the header's names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointOptions {
    pub window_bytes: Option<u64>,
    pub slot_bytes: Option<u32>,
    pub line: LineFormat,
    pub sq_blocks: Option<u32>,
    pub receives: u32,
    pub timeout_s: f64,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        let (window_bytes, slot_bytes, sq_blocks) = (None, None, None);
        let line = LineFormat::L12S4;
        Self { window_bytes, slot_bytes, line, sq_blocks, receives: 0, timeout_s: 5.0 }
    }
}

/// Options from their JSON; all defaults without any.
pub fn parse<T: Default + for<'a> Deserialize<'a>>(text: Option<&CStr>) -> Result<T, Failure> {
    let Some(text) = text else { return Ok(T::default()) };
    let wrong = |why: &dyn std::fmt::Display| Failure::refused(format!("options: {why}"));
    let text = text.to_str().map_err(|e| wrong(&e))?;
    serde_json::from_str(text).map_err(|e| wrong(&e))
}

fn one<T: Copy>(all: &[T], what: &str, given: c_int) -> Result<T, Failure> {
    let found = usize::try_from(given).ok().and_then(|i| all.get(i)).copied();
    found.ok_or_else(|| Failure::refused(format!("{given} is no {what} of bellpush.h")))
}

pub fn dtype(given: c_int) -> Result<Dtype, Failure> {
    one(Dtype::ALL, "element type", given)
}

pub fn op(given: c_int) -> Result<Op, Failure> {
    one(Op::ALL, "operation", given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_numbers_are_the_types() {
        let header = include_str!("../bellpush.h");
        for (i, d) in Dtype::ALL.iter().enumerate() {
            let line = format!("BELLPUSH_{} = {i}", d.as_str().to_uppercase());
            assert!(header.contains(&line), "{line}");
            assert_eq!(dtype(i as c_int).unwrap(), *d);
        }
        for (i, o) in Op::ALL.iter().enumerate() {
            let line = format!("BELLPUSH_{} = {i}", o.as_str().to_uppercase());
            assert!(header.contains(&line), "{line}");
            assert_eq!(op(i as c_int).unwrap(), *o);
        }
        assert!(dtype(4).is_err() && dtype(-1).is_err() && op(4).is_err());
    }

    #[test]
    fn options_are_named_and_unknown_ones_refused() {
        let parse = |text: &CStr| super::parse::<Options>(Some(text)).map_err(|f| f.text);
        assert_eq!(parse(c"{}").unwrap(), Options::default());
        let some = parse(c"{\"executor\": \"host\", \"timeout_s\": 2, \"link\": \"udp\"}").unwrap();
        assert_eq!((some.executor, some.link, some.timeout_s), (Executor::Host, Link::Udp, 2.0));
        let waits = parse(c"{\"timeout_s\": 2, \"name\": \"b\"}").unwrap();
        assert_eq!((waits.timeout_s, waits.join_timeout_s, waits.name.as_str()), (2.0, 300.0, "b"));
        let open = |text: &CStr| super::parse::<OpenOptions>(Some(text)).map_err(|f| f.text);
        let udp = open(c"{\"executor\": \"host\", \"link\": \"udp\"}").unwrap();
        assert_eq!((udp.link, udp.nic.as_str()), (Wire::Udp, "soft"));
        assert!(open(c"{\"link\": \"tcp\"}").unwrap_err().contains("tcp"));
        let end = |text: &CStr| super::parse::<EndpointOptions>(Some(text)).map_err(|f| f.text);
        assert_eq!(end(c"{\"receives\": 8}").unwrap().receives, 8);
        assert!(end(c"{\"slot_bytes\": -1}").is_err());
        let header = include_str!("../bellpush.h");
        for text in ["\"name\": \"\"", "\"join_timeout_s\": 300", "\"timeout_s\": 300"] {
            assert!(header.contains(text), "{text}");
        }
        let addresses = |text| parse(text).unwrap().address.all().to_vec();
        let one = [IpAddr::from([127, 0, 0, 1])];
        assert_eq!(addresses(c"{\"address\": \"127.0.0.1\"}"), one);
        assert_eq!(addresses(c"{\"address\": [\"127.0.0.1\"]}"), one);
        assert!(addresses(c"{}").is_empty());
        assert!(parse(c"{\"address\": \"here\"}").is_err());
        assert_eq!(parse(c"{\"line\": \"60+4\"}").unwrap().line, LineFormat::L60S4);
        assert!(parse(c"{\"line\": \"61+3\"}").unwrap_err().contains("14+2"));
        assert!(parse(c"{\"colour\": 1}").unwrap_err().contains("colour"));
        assert!(parse(c"{").unwrap_err().starts_with("options: "));
        assert!(parse(c"{\"link\": \"tcp\"}").unwrap_err().contains("tcp"));
    }
}

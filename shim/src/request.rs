//! A command: copied out of the program's memory, then checked; and its response.
//!
//! Nothing is written to the program's memory before the command has succeeded, so that one which
//! fails half-way leaves no handles behind: what the response cannot be written for is undone.

use bellpush_mem::{Dma, UserMem};
use bytemuck::{Pod, Zeroable};

use crate::abi::verbs::{ATTR_MANDATORY, ATTR_VALID_OUTPUT, IoctlAttr, IoctlHdr};
use crate::error::Refusal;

/// Most attributes of a command; the kernel's own methods have no more than 20.
const MAX_ATTRS: usize = 64;

/// Copies bytes out of the program's memory.
pub fn read_user(addr: u64, into: &mut [u8]) -> Result<(), Refusal> {
    // SAFETY: nothing is written.
    let mem = unsafe { UserMem::unchecked(addr, into.len()) };
    mem.read(0, into).map_err(|_| Refusal::Fault { addr, bytes: into.len() })
}

/// Copies bytes to the program's memory.
///
/// # Safety
/// The program asked for something to be written there.
pub unsafe fn write_user(addr: u64, from: &[u8]) -> Result<(), Refusal> {
    // SAFETY: as the caller promises.
    let mem = unsafe { UserMem::unchecked(addr, from.len()) };
    mem.write(0, from).map_err(|_| Refusal::Fault { addr, bytes: from.len() })
}

struct Attr {
    /// Where it is in the program's memory.
    at: u64,
    head: IoctlAttr,
}

/// A command with its response.
pub struct Request {
    /// `object_id`.
    pub object: u16,
    /// `method_id`.
    pub method: u16,
    attrs: Vec<Attr>,
    writes: Vec<(u64, Vec<u8>)>,
}

impl Request {
    /// Copies a command's header and attributes.
    ///
    /// # Errors
    /// [`Refusal::Fault`], [`Refusal::Value`] for a length that does not fit.
    pub fn read(addr: u64) -> Result<Self, Refusal> {
        let mut hdr = IoctlHdr::zeroed();
        read_user(addr, bytemuck::bytes_of_mut(&mut hdr))?;
        let count = usize::from(hdr.num_attrs);
        let fits = size_of::<IoctlHdr>() + count * size_of::<IoctlAttr>();
        if usize::from(hdr.length) != fits || count > MAX_ATTRS {
            let must = "the header and its attributes, at most 64";
            return Err(Refusal::Value {
                what: "command's length",
                value: hdr.length.into(),
                must,
            });
        }
        if hdr.reserved1 != 0 || hdr.reserved2 != 0 {
            let value = hdr.reserved1 | u64::from(hdr.reserved2);
            return Err(Refusal::Value { what: "reserved field", value, must: "0" });
        }
        let mut heads = vec![IoctlAttr::zeroed(); count];
        let first = addr + size_of::<IoctlHdr>() as u64;
        read_user(first, bytemuck::cast_slice_mut(&mut heads))?;
        let place = |(i, head)| Attr { at: first + (i * size_of::<IoctlAttr>()) as u64, head };
        let attrs: Vec<Attr> = heads.into_iter().enumerate().map(place).collect();
        for (i, attr) in attrs.iter().enumerate() {
            if attrs[..i].iter().any(|other| other.head.attr_id == attr.head.attr_id) {
                let (value, must) = (attr.head.attr_id.into(), "there once");
                return Err(Refusal::Value { what: "attribute", value, must });
            }
        }
        Ok(Self { object: hdr.object_id, method: hdr.method_id, attrs, writes: Vec::new() })
    }

    /// Refuses attributes that must be understood and are none of these.
    pub fn only(&self, known: &[u16]) -> Result<(), Refusal> {
        let must = |attr: &&Attr| attr.head.flags & ATTR_MANDATORY != 0;
        let odd = self.attrs.iter().filter(must).find(|a| !known.contains(&a.head.attr_id));
        odd.map_or(Ok(()), |attr| Err(Refusal::Attribute(attr.head.attr_id)))
    }

    fn find(&self, id: u16) -> Option<&Attr> {
        self.attrs.iter().find(|attr| attr.head.attr_id == id)
    }

    fn get(&self, id: u16) -> Result<&Attr, Refusal> {
        self.find(id).ok_or(Refusal::Missing(id))
    }

    /// Whether the command has that attribute.
    pub fn has(&self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Input of at least a struct's size; what a newer program says beyond that must be 0.
    pub fn input<T: Pod>(&self, id: u16) -> Result<T, Refusal> {
        self.input_from(id, size_of::<T>())
    }

    /// As [`Request::input`], of programs that may say less: fields behind `least` bytes are 0 then.
    pub fn input_from<T: Pod>(&self, id: u16, least: usize) -> Result<T, Refusal> {
        let head = &self.get(id)?.head;
        let length = usize::from(head.len);
        if length < least {
            let must = "the length of its struct";
            return Err(Refusal::Value { what: "attribute's length", value: length as u64, must });
        }
        let mut bytes = vec![0; length.max(size_of::<T>())];
        if length <= 8 {
            bytes[..length].copy_from_slice(&head.data.to_ne_bytes()[..length]);
        } else {
            read_user(head.data, &mut bytes[..length])?;
        }
        if bytes[size_of::<T>()..].iter().any(|&byte| byte != 0) {
            return Err(Refusal::Unsupported("what a newer struct says"));
        }
        Ok(bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()]))
    }

    /// Bytes of whatever length the program gives, at most so many.
    pub fn bytes(&self, id: u16, most: usize) -> Result<Vec<u8>, Refusal> {
        let head = &self.get(id)?.head;
        let length = usize::from(head.len);
        if length > most {
            let (value, must) = (length as u64, "at most the largest command's");
            return Err(Refusal::Value { what: "attribute's length", value, must });
        }
        let mut bytes = vec![0; length];
        if length <= 8 {
            bytes.copy_from_slice(&head.data.to_ne_bytes()[..length]);
        } else {
            read_user(head.data, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// A number, of the size that the program gives it.
    pub fn number(&self, id: u16) -> Result<u64, Refusal> {
        let head = &self.get(id)?.head;
        match head.len {
            0 | 8 => Ok(head.data),
            1..8 => Ok(head.data & ((1 << (head.len * 8)) - 1)),
            length => {
                let must = "at most 8 bytes";
                Err(Refusal::Value { what: "number's length", value: length.into(), must })
            }
        }
    }

    /// A number that may be left out.
    pub fn number_or(&self, id: u16, default: u64) -> Result<u64, Refusal> {
        if self.has(id) { self.number(id) } else { Ok(default) }
    }

    /// A number of 32 bits.
    pub fn word(&self, id: u16) -> Result<u32, Refusal> {
        let value = self.number(id)?;
        let wide = |_| Refusal::Value { what: "number", value, must: "of 32 bits" };
        u32::try_from(value).map_err(wide)
    }

    /// A handle.
    pub fn handle(&self, id: u16) -> Result<u32, Refusal> {
        let data = self.get(id)?.head.data;
        u32::try_from(data).map_err(|_| Refusal::Handle { what: "object", handle: u32::MAX })
    }

    /// A descriptor.
    pub fn fd(&self, id: u16) -> Result<i32, Refusal> {
        let data = self.get(id)?.head.data as i64;
        i32::try_from(data).map_err(|_| Refusal::Value {
            what: "descriptor",
            value: data as u64,
            must: "one",
        })
    }

    /// Length that an output attribute has room for.
    pub fn room(&self, id: u16) -> Result<usize, Refusal> {
        Ok(self.get(id)?.head.len.into())
    }

    /// Answers with bytes: as many as there is room for, and zeros where there is room for more.
    /// Without the attribute, nobody asked.
    pub fn put(&mut self, id: u16, bytes: &[u8]) {
        let Some(Attr { at, head }) = self.find(id) else { return };
        let room = usize::from(head.len);
        let mut out = bytes[..bytes.len().min(room)].to_vec();
        out.resize(room, 0);
        let flags = (head.flags | ATTR_VALID_OUTPUT).to_ne_bytes();
        let writes = [(head.data, out), (at + 4, flags.to_vec())];
        self.writes.extend(writes);
    }

    /// Answers with a new handle or descriptor.
    pub fn put_handle(&mut self, id: u16, handle: u64) {
        if let Some(Attr { at, .. }) = self.find(id) {
            let write = (at + 8, handle.to_ne_bytes().to_vec());
            self.writes.push(write);
        }
    }

    /// Writes the response.
    ///
    /// # Errors
    /// [`Refusal::Fault`]; part of the response may have been written.
    pub fn send(self) -> Result<(), Refusal> {
        for (addr, bytes) in &self.writes {
            // SAFETY: the program named these places for its answer.
            unsafe { write_user(*addr, bytes)? };
        }
        Ok(())
    }
}

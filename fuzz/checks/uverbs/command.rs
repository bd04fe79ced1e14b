//! A command as bytes in the arena: what it takes, what it answers, and what is wrong with it.

use bytemuck::{bytes_of, pod_read_unaligned};

use super::Input;
use crate::abi::ids::{UHW_IN, UHW_OUT, attr, command, method, object};
use crate::abi::verbs::{ATTR_MANDATORY, IoctlAttr, IoctlHdr};
use crate::fuzzed::{ARENA, Memory, Opened};

const HEADER: usize = size_of::<IoctlHdr>();
const ATTR: usize = size_of::<IoctlAttr>();
/// What the arena holds where nothing lies.
const CANARY: u8 = 0xa5;
/// Bytes between two things in the arena.
const GAP: usize = 16;

/// Errnos of the kernel's own commands, and of this driver's. No way leads to a peer (EHOSTUNREACH): so the kernel answers
/// too, of a route that it does not find.
const ERRNOS: [i32; 13] = [
    libc::EINVAL,
    libc::ENOENT,
    libc::EFAULT,
    libc::EPROTONOSUPPORT,
    libc::EOPNOTSUPP,
    libc::ENOSPC,
    libc::EBUSY,
    libc::ENOMEM,
    libc::EREMOTEIO,
    libc::EPERM,
    libc::ENODATA,
    libc::EAGAIN,
    libc::EHOSTUNREACH,
];

/// What an attribute holds.
#[derive(Debug, Clone)]
pub enum What {
    /// Bytes of input themselves.
    Value(u64, u16),
    /// Input, whose first so many bytes are as they must be: addresses.
    In(Vec<u8>, usize),
    /// Room for an answer.
    Out(u16),
    /// Where a new handle comes.
    Handle,
}

#[derive(Debug, Clone)]
pub struct Attr {
    pub id: u16,
    what: What,
}

/// A command.
#[derive(Debug, Clone)]
pub struct Cmd {
    object: u16,
    method: u16,
    attrs: Vec<Attr>,
    /// Why it must be refused, if it must.
    pub wrong: Option<&'static str>,
    /// Whether it may mean something else than it was made to.
    pub vague: bool,
    whole: bool,
}

/// What came of a command.
pub struct Done {
    pub errno: Result<(), i32>,
    answers: Vec<(u16, Vec<u8>)>,
    handle: Option<u64>,
}

impl Done {
    pub fn is_ok(&self) -> bool {
        self.errno.is_ok()
    }

    /// What an attribute was answered.
    pub fn answer(&self, id: u16) -> &[u8] {
        self.answers.iter().find(|(of, _)| *of == id).map_or(&[], |(_, bytes)| bytes)
    }

    /// The words that a command of the old kind was answered.
    pub fn word(&self, id: u16, n: usize) -> u32 {
        let bytes = self.answer(id).get(n * 4..n * 4 + 4);
        bytes.map_or(0, |four| u32::from_ne_bytes(four.try_into().expect("four bytes")))
    }

    /// The new handle.
    pub fn handle(&self) -> u64 {
        self.handle.unwrap_or_else(|| self.word(attr::CORE_OUT, 0).into())
    }
}

impl Cmd {
    pub fn new(object: u16, method: u16) -> Self {
        Self { object, method, attrs: Vec::new(), wrong: None, vague: false, whole: false }
    }

    /// One that once went by `write`.
    pub fn written(number: u32, core: Vec<u8>) -> Self {
        let number = What::Value(number.into(), 8);
        Self::new(object::DEVICE, method::INVOKE_WRITE)
            .with(attr::WRITE_CMD, number)
            .with(attr::CORE_IN, What::In(core, 0))
    }

    pub fn with(mut self, id: u16, what: What) -> Self {
        self.attrs.push(Attr { id, what });
        self
    }

    pub fn value(self, id: u16, value: u64) -> Self {
        self.with(id, What::Value(value, 8))
    }

    pub fn input(self, id: u16, bytes: Vec<u8>) -> Self {
        self.with(id, What::In(bytes, 0))
    }

    /// The driver's part, which begins with two addresses.
    pub fn driver(self, bytes: &[u8]) -> Self {
        self.with(UHW_IN, What::In(bytes.to_vec(), 16))
    }

    pub fn out(self, id: u16, bytes: u16) -> Self {
        self.with(id, What::Out(bytes))
    }

    pub fn handle(self, id: u16) -> Self {
        self.with(id, What::Handle)
    }

    /// Refused if it names what it must not.
    pub fn wrong_if(mut self, why: Option<&'static str>) -> Self {
        self.wrong = self.wrong.or(why);
        self
    }

    /// Its input's first so many bytes are addresses, which stay as they are made.
    pub fn fixed(mut self, bytes: usize) -> Self {
        if let Some(Attr { what: What::In(_, fixed), .. }) = self.attrs.last_mut() {
            *fixed = bytes;
        }
        self
    }

    /// It stays as it is made.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Whether it borrows memory whose addresses must be as they are made.
    fn borrows(&self) -> bool {
        self.attrs.iter().any(|attr| matches!(attr.what, What::In(_, 1..)))
    }

    /// Nobody knows what it means.
    fn is_vague(&mut self) {
        (self.vague, self.wrong) = (true, None);
    }

    /// Something goes wrong with the bytes.
    pub fn slip(&mut self, input: &mut Input<'_>, into: &mut Layout) {
        if self.whole {
            return;
        }
        let (what, with) = (input.u8() % 12, input.u8());
        let n = self.attrs.len().max(1);
        let at = usize::from(with) % n;
        let why = match what {
            0 => {
                into.longer = i16::from(with as i8) | 1;
                "its length is not that of its attributes"
            }
            1 if !self.attrs.is_empty() => {
                self.attrs.push(self.attrs[at].clone());
                "an attribute is there twice"
            }
            2 => {
                into.reserved = u64::from(with) | 1;
                "a reserved field is not 0"
            }
            3 => {
                self.attrs.push(Attr { id: 0x7000 | u16::from(with), what: What::Value(1, 8) });
                into.mandatory = Some(self.attrs.len() - 1);
                "an attribute that must be understood is not"
            }
            4 | 5 if !self.attrs.is_empty() => {
                let read = match &self.attrs[at].what {
                    What::In(bytes, _) => bytes.len() > 8,
                    What::Out(room) => *room > 0,
                    _ => return,
                };
                into.moved = Some((at, input.u8()));
                if !read {
                    return self.is_vague();
                }
                "an address cannot be accessed"
            }
            6 | 7 => {
                if let Some(Attr { what: What::In(bytes, fixed), .. }) = self.attrs.get_mut(at) {
                    let place = *fixed + usize::from(input.u8());
                    let flip = input.u8();
                    if let Some(byte) = bytes.get_mut(place) {
                        *byte ^= flip;
                    }
                }
                return self.is_vague();
            }
            8 => {
                into.length = Some((at, u16::from(input.u8()) << (with & 8)));
                return self.is_vague();
            }
            9 if !self.attrs.is_empty() => {
                self.attrs.remove(at);
                return self.is_vague();
            }
            10 if !self.borrows() && !self.attrs.is_empty() => {
                self.attrs[at].id ^= u16::from(input.u8() & 31);
                return self.is_vague();
            }
            11 if !self.borrows() => {
                if let Some(Attr { what: What::Value(value, _), .. }) = self.attrs.get_mut(at) {
                    *value ^= 1 << (input.u8() % 64);
                }
                return self.is_vague();
            }
            _ => return,
        };
        self.wrong = Some(why);
    }

    /// The number in an attribute, as it is sent.
    pub fn number(&self, id: u16) -> Option<u64> {
        self.attrs.iter().find_map(|it| match it.what {
            What::Value(value, _) if it.id == id => Some(value),
            _ => None,
        })
    }

    /// Whether it names a descriptor of the program's, which may not be open: `mlx5_ib` answers as `eventfd_ctx_fdget`.
    fn names_descriptor(&self) -> bool {
        let subscribes = (self.object, self.method) == (object::DEVX, method::DEVX_SUBSCRIBE);
        subscribes && self.attrs.iter().any(|it| it.id == attr::DEVX_SUBSCRIBE_FD_NUM)
    }

    /// Sends it, and looks at what was written where.
    pub fn send(&self, device: &Opened, layout: &Layout) -> Done {
        let memory = &device.memory;
        let mut before = [CANARY; ARENA];
        let places = self.lay_out(memory, layout, &mut before);
        memory.fill(&before);
        let errno = device.ioctl(memory.arena + GAP as u64);
        let mut now = [0; ARENA];
        memory.read(&mut now);
        if let Err(errno) = errno {
            let known = ERRNOS.contains(&errno) || errno == libc::EBADF && self.names_descriptor();
            assert!(known, "errno {errno} of {self:?}");
            if !matches!(errno, libc::EREMOTEIO | libc::EFAULT) {
                assert!(before == now, "{errno} of {self:?}, and something was written");
            }
        }
        let refused = errno.is_err();
        assert!(self.wrong.is_none() || refused, "{:?}: {self:?} was carried out", self.wrong);
        let mut answers = Vec::new();
        let mut handle = None;
        for (i, (attr, &(place, bytes))) in self.attrs.iter().zip(&places).enumerate() {
            let head = GAP + HEADER + i * ATTR;
            match attr.what {
                What::Out(_) => {
                    // As far as it is in the arena: behind that nothing can be written.
                    let end = (place + bytes).min(ARENA);
                    answers.push((attr.id, now[place..end].to_vec()));
                    before[place..end].copy_from_slice(&now[place..end]);
                    before[head + 4..head + 6].copy_from_slice(&now[head + 4..head + 6]);
                    if self.vague {
                        // To another command the attribute may be where a new object's handle goes.
                        before[head + 8..head + ATTR].copy_from_slice(&now[head + 8..head + ATTR]);
                    }
                }
                What::Handle => {
                    let new: [u8; 8] = now[head + 8..head + 16].try_into().expect("eight bytes");
                    handle = Some(u64::from_ne_bytes(new));
                    before[head + 8..head + 16].copy_from_slice(&new);
                }
                _ if self.vague => {
                    // What it means now may be an answer.
                    before[head..head + ATTR].copy_from_slice(&now[head..head + ATTR]);
                    let end = (place + bytes).min(ARENA);
                    if let Some(written) = now.get(place..end) {
                        before[place..end].copy_from_slice(written);
                    }
                }
                _ => {}
            }
        }
        assert!(before == now, "{self:?} writes past its answer");
        Done { errno, answers, handle }
    }

    /// Puts the header, its attributes, input and room for answers into the arena, one after the other with bytes in
    /// between that nobody may touch. Where each is, and how long.
    fn lay_out(
        &self,
        memory: &Memory,
        layout: &Layout,
        arena: &mut [u8; ARENA],
    ) -> Vec<(usize, usize)> {
        let mut next = GAP + HEADER + self.attrs.len() * ATTR + GAP;
        let mut places = Vec::new();
        for (i, attr) in self.attrs.iter().enumerate() {
            let mut head = IoctlAttr {
                attr_id: attr.id,
                len: 0,
                flags: u16::from(layout.mandatory == Some(i)) * ATTR_MANDATORY,
                attr_data: [0; 2],
                data: 0,
            };
            let (data, bytes) = match &attr.what {
                What::Value(value, bytes) => {
                    (head.data, head.len) = (*value, *bytes);
                    (None, 0)
                }
                What::Handle => (None, 0),
                What::In(bytes, _) => {
                    arena[next..next + bytes.len()].copy_from_slice(bytes);
                    (Some(next), bytes.len())
                }
                What::Out(bytes) => (Some(next), usize::from(*bytes)),
            };
            let mut place = (ARENA, bytes);
            if let Some(at) = data {
                head.len = bytes as u16;
                head.data = memory.arena + at as u64;
                place.0 = at;
                next += bytes + GAP;
                if let What::In(bytes, _) = &attr.what
                    && bytes.len() <= 8
                {
                    let mut eight = [0; 8];
                    eight[..bytes.len()].copy_from_slice(bytes);
                    head.data = u64::from_ne_bytes(eight);
                }
            }
            if let Some((of, length)) = layout.length
                && of == i
            {
                head.len = length;
                place.1 = usize::from(length);
            }
            if let Some((of, to)) = layout.moved
                && of == i
            {
                head.data = elsewhere(memory, to, head.len);
                // What can be written of it may be, before the rest cannot.
                let at = head.data.wrapping_sub(memory.arena);
                place = match at {
                    u64::MAX => (0, bytes.saturating_sub(1)),
                    _ if at < ARENA as u64 => (at as usize, bytes),
                    _ => (ARENA, bytes),
                };
            }
            places.push(place);
            let at = GAP + HEADER + i * ATTR;
            arena[at..at + ATTR].copy_from_slice(bytes_of(&head));
        }
        let length = (HEADER + self.attrs.len() * ATTR) as i64 + i64::from(layout.longer);
        let header = IoctlHdr {
            length: length as u16,
            object_id: self.object,
            method_id: self.method,
            num_attrs: self.attrs.len() as u16,
            reserved1: layout.reserved,
            driver_id: 0,
            reserved2: 0,
        };
        arena[GAP..GAP + HEADER].copy_from_slice(bytes_of(&header));
        places
    }
}

/// How the bytes of a command lie, where that is not as they should.
#[derive(Debug, Default)]
pub struct Layout {
    longer: i16,
    reserved: u64,
    mandatory: Option<usize>,
    /// An attribute whose address is another, and which.
    moved: Option<(usize, u8)>,
    length: Option<(usize, u16)>,
}

/// An address at which so many bytes cannot be written, nor but for the first read.
fn elsewhere(memory: &Memory, which: u8, bytes: u16) -> u64 {
    match which % 6 {
        0 => 0,
        1 => memory.hole,
        // All but the last byte.
        2 => memory.arena + ARENA as u64 + 1 - u64::from(bytes.max(1)),
        3 => 0xffff_8000_0000_0000,
        4 => u64::MAX - u64::from(bytes / 2),
        _ => memory.arena - 1,
    }
}

/// A command whose every number the input says. None that has memory borrowed: its addresses would be anybody's.
pub fn raw(input: &mut Input<'_>, memory: &Memory) -> Cmd {
    const OBJECTS: [u16; 16] = [
        object::DEVICE,
        object::PD,
        object::AH,
        object::MR,
        object::MW,
        object::XRCD,
        object::DM,
        object::ASYNC_EVENT,
        object::DEVX,
        object::DEVX_OBJ,
        object::DEVX_EVENTS,
        object::UAR,
        9,
        13,
        0x1003,
        0xffff,
    ];
    let of = OBJECTS[usize::from(input.u8() % 16)];
    let number = input.u8();
    let mut cmd = Cmd::new(of, u16::from(number & 7) | u16::from(number & 8) << 9);
    let old = of == object::DEVICE && cmd.method == method::INVOKE_WRITE;
    for _ in 0..input.u8() % 8 {
        let (id, how) = (input.u8(), input.u8());
        let id = u16::from(id & 15) | u16::from(id & 16) << 8;
        let bytes = (0..usize::from(input.u8()) % 64).map(|_| input.u8()).collect();
        let what = match how % 4 {
            // The command's number: not one that registers or borrows.
            _ if old && id == attr::WRITE_CMD => {
                let other = u32::from(how) | u32::from(how & 64) << 25;
                let taken =
                    matches!(other, command::REG_MR | command::REREG_MR | command::RESIZE_CQ);
                What::Value(if taken { 0 } else { other.into() }, 8)
            }
            0 => What::Value(input.u8().into(), u16::from(how >> 4)),
            1 => What::Out(u16::from(how)),
            2 => What::Value(memory.constant, 64 + u16::from(how)),
            _ => What::In(bytes, 0),
        };
        // The driver's part of an answer is an answer.
        let what = if id == UHW_OUT { What::Out(u16::from(how)) } else { what };
        cmd.attrs.push(Attr { id, what });
    }
    cmd.vague = true;
    cmd
}

/// A struct of an answer.
pub fn read<T: bytemuck::Pod>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(pod_read_unaligned)
}

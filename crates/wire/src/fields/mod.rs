//! Formats field by field: names and places, as the specifications have them.
//!
//! [`Layout`]s say what the bytes of a segment, a header or an entry are called. They read what is there and
//! judge nothing: a parser says whether bytes are right, a layout says which byte is which. Names are those of
//! the mlx5 PRM and of libmlx5's structures, of the InfiniBand specification (vol. 1, chapter 9), and of RFC 791,
//! 8200 and 768. Bits are counted as the PRM counts them: the most significant of a word has the highest number.
//!
//! | file | what |
//! |---|---|
//! | `queue` | segments of WQEs, CQEs, doorbells and doorbell records |
//! | `packet` | Ethernet, IP, UDP, BTH and extension headers; the header of a MAD |
//! | `walk` | which segments a send WQE consists of |

mod packet;
mod queue;
#[cfg(test)]
mod tests;
mod walk;

pub use packet::{
    AETH, ATOMIC_ACK_ETH, ATOMIC_ETH, BTH, CNP, COOKED, COOKED2, DCETH, DETH, ETHERNET, FETH, ICRC,
    IETH, IMM_DT, IPV4, IPV6, MAD, MASKS, RETH, UDP, VLAN, XRCETH, extensions,
};
pub use queue::{
    ATOMIC, AV, AV_DC, BSF, CQ_DBR, CQ_DOORBELL, CQE, CQE_ERROR, CQE_SIG_ERR, CTRL, DATA, DBR,
    DOORBELL, INLINE, KLM, KSM, LIST, MASKED_CS_4, MASKED_CS_8, MASKED_FA_4, MASKED_FA_8,
    MINI_CQE_REQ, MINI_CQE_RESP, MKEY, MMO, MTT, NEXT, RADDR, REPEAT, REPEAT_ENTRY, UMR, UMR_BSF,
    WAIT, XRC,
};
pub use walk::{Body, Segment, Sends, Walk, receives, walk};

/// A field of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name; a field of a word is called `word.field`.
    pub name: &'static str,
    /// Offset of its word from the format's beginning, in bytes.
    pub at: usize,
    /// Bits of its word.
    word: usize,
    /// Its most significant bit in the word.
    high: usize,
    /// Its bits.
    width: usize,
    /// Whether it is bytes and no number.
    raw: bool,
    /// Whether the specification wants zeros.
    pub reserved: bool,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number of up to 64 bits.
    Number(u64),
    /// Bytes: addresses, data.
    Bytes(&'a [u8]),
}

impl Value<'_> {
    /// Whether all of it is zero.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Number(n) => *n == 0,
            Self::Bytes(bytes) => bytes.iter().all(|&byte| byte == 0),
        }
    }
}

impl Field {
    /// Bits `high` to `low` of the big-endian word of `word` bits at byte `at`.
    const fn bits(name: &'static str, word: usize, at: usize, high: usize, low: usize) -> Self {
        Self { name, at, word, high, width: high - low + 1, raw: false, reserved: false }
    }

    /// A field by the first of its bits, counted from the most significant of byte `byte`.
    pub(crate) const fn of(name: &'static str, byte: usize, bit: usize, width: usize) -> Self {
        let word = (bit + width).div_ceil(8) * 8;
        Self { name, at: byte, word, high: word - 1 - bit, width, raw: false, reserved: false }
    }

    /// Whole bytes.
    pub(crate) const fn bytes(name: &'static str, at: usize, len: usize) -> Self {
        Self { raw: true, ..Self::bits(name, len * 8, at, len * 8 - 1, 0) }
    }

    const fn zero(self) -> Self {
        Self { reserved: true, ..self }
    }

    /// Its highest and lowest bit in its word; `None` when it is the whole word.
    pub fn place(&self) -> Option<(usize, usize)> {
        (self.width < self.word).then_some((self.high, self.high + 1 - self.width))
    }

    /// Bits that it has.
    pub fn width(&self) -> usize {
        self.width
    }

    /// First and one behind its last bit, from the format's first.
    #[cfg(test)]
    fn span(&self) -> (usize, usize) {
        let first = self.at * 8 + self.word - 1 - self.high;
        (first, first + self.width)
    }

    /// What it holds in bytes that begin with the format; `None` where they end before it does.
    pub fn value<'a>(&self, bytes: &'a [u8]) -> Option<Value<'a>> {
        let word = bytes.get(self.at..self.at + self.word / 8)?;
        if self.raw {
            return Some(Value::Bytes(word));
        }
        let all = word.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        let low = self.high + 1 - self.width;
        Some(Value::Number(all >> low & (u64::MAX >> (64 - self.width))))
    }
}

const fn w8(name: &'static str, at: usize, high: usize, low: usize) -> Field {
    Field::bits(name, 8, at, high, low)
}
const fn w16(name: &'static str, at: usize, high: usize, low: usize) -> Field {
    Field::bits(name, 16, at, high, low)
}
const fn w32(name: &'static str, at: usize, high: usize, low: usize) -> Field {
    Field::bits(name, 32, at, high, low)
}
const fn w64(name: &'static str, at: usize) -> Field {
    Field::bits(name, 64, at, 63, 0)
}
const fn r8(at: usize, high: usize, low: usize) -> Field {
    w8("reserved", at, high, low).zero()
}
const fn r32(at: usize, high: usize, low: usize) -> Field {
    w32("reserved", at, high, low).zero()
}
const fn rest(at: usize, len: usize) -> Field {
    Field::bytes("reserved", at, len).zero()
}

/// A format: a segment, a header, an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Its length.
    pub bytes: usize,
    /// Its fields, in order. They cover every bit once.
    pub fields: &'static [Field],
}

impl Layout {
    /// The number in a field; `None` if there is no such field, or if the bytes end before it does.
    pub fn number(&self, name: &str, bytes: &[u8]) -> Option<u64> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        match field.value(bytes)? {
            Value::Number(n) => Some(n),
            Value::Bytes(_) => None,
        }
    }
}

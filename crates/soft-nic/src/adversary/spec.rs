//! What an adversary is to do, as people write it: `SEED` or `SEED,KIND,…`.

use std::fmt;
use std::str::FromStr;

/// A freedom that an adversary takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Payload is gathered late, and looked at once more when the WQE is complete.
    Payload,
    /// The bytes of inbound WRITEs to regions with relaxed ordering land late and in any order, all before the WRITE is
    /// acknowledged.
    Writes,
    /// The same for every region, also later than the acknowledgement.
    AllWrites,
    /// The doorbell record is read early, and a doorbell has its effect late.
    Record,
    /// CQEs come late; those of one CQ in their order, those of several in any.
    Cqe,
    /// Packets of one queue pair stay in order, those of several do not.
    Packets,
    /// Acknowledgements are lost, so that requests come twice.
    Acks,
    /// Packets of one reliable connection overtake each other now and then.
    Routing,
    /// Atomics pass WRITEs of other queue pairs that have not landed.
    Atomics,
    /// The doorbell record is read when a doorbell comes, and at no other time; what the doorbell itself says does not
    /// count. Of queue pairs that are posted to as silicon asks for it ([`bellpush_nic::Order::Strict`]).
    Doorbell,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Payload,
        Self::Writes,
        Self::AllWrites,
        Self::Record,
        Self::Cqe,
        Self::Packets,
        Self::Acks,
        Self::Routing,
        Self::Atomics,
        Self::Doorbell,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Writes => "writes",
            Self::AllWrites => "writes=all",
            Self::Record => "record",
            Self::Cqe => "cqe",
            Self::Packets => "packets",
            Self::Acks => "acks",
            Self::Routing => "routing",
            Self::Atomics => "atomics",
            Self::Doorbell => "doorbell",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u8
    }

    /// The kind of which it is a form.
    fn plain(self) -> Self {
        if self == Self::AllWrites { Self::Writes } else { self }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An adversary: which freedoms it takes, and the seed of its decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adversary {
    /// Seed of all decisions.
    pub seed: u64,
    kinds: u16,
}

/// Why a description of an adversary makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdversaryError {
    /// The seed is missing, or no number.
    #[error("{0:?} is no seed: a number from 0 to 2^64 - 1 comes first")]
    Seed(String),
    /// A kind that is not known.
    #[error(
        "no adversary is named {0:?}; there are payload, writes, writes=all, record, cqe, packets, \
         acks, routing, atomics and doorbell"
    )]
    Kind(String),
    /// The same kind twice, perhaps in two forms.
    #[error("{0} is given twice")]
    Twice(Kind),
}

impl Adversary {
    /// The usual kinds: all but [`Kind::AllWrites`], under which programs fail that rely on what all NICs do.
    pub fn new(seed: u64) -> Self {
        let usual = Kind::ALL.into_iter().filter(|&kind| kind != Kind::AllWrites);
        Self { seed, kinds: usual.fold(0, |kinds, kind| kinds | kind.bit()) }
    }

    /// These kinds alone. [`Kind::AllWrites`] stands for [`Kind::Writes`] as well.
    pub fn of(seed: u64, kinds: &[Kind]) -> Self {
        let said = |kind: &&Kind| **kind != Kind::Writes || !kinds.contains(&Kind::AllWrites);
        Self { seed, kinds: kinds.iter().filter(said).fold(0, |all, kind| all | kind.bit()) }
    }

    /// Whether it takes that freedom.
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds & kind.bit() != 0
    }
}

impl FromStr for Adversary {
    type Err = AdversaryError;

    fn from_str(text: &str) -> Result<Self, AdversaryError> {
        let mut parts = text.split(',').map(str::trim);
        let seed = parts.next().unwrap_or("");
        let seed = seed.parse().map_err(|_| AdversaryError::Seed(seed.into()))?;
        let mut kinds: Vec<Kind> = Vec::new();
        for name in parts {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
            let kind = kind.ok_or_else(|| AdversaryError::Kind(name.into()))?;
            if kinds.iter().any(|before| before.plain() == kind.plain()) {
                return Err(AdversaryError::Twice(kind.plain()));
            }
            kinds.push(kind);
        }
        Ok(if kinds.is_empty() { Self::new(seed) } else { Self::of(seed, &kinds) })
    }
}

impl fmt::Display for Adversary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        Kind::ALL.into_iter().filter(|&kind| self.has(kind)).try_for_each(|k| write!(f, ",{k}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_written_again() {
        let usual: Adversary = "7".parse().unwrap();
        assert_eq!(usual, Adversary::new(7));
        assert!(usual.has(Kind::Payload) && !usual.has(Kind::AllWrites));
        assert_eq!(usual.to_string().parse(), Ok(usual));
        let some: Adversary = "18446744073709551615, writes=all,cqe".parse().unwrap();
        assert_eq!(some, Adversary::of(u64::MAX, &[Kind::AllWrites, Kind::Cqe]));
        assert_eq!(some.to_string(), "18446744073709551615,writes=all,cqe");
        let all = Adversary::of(7, &Kind::ALL);
        assert_eq!(all.to_string().parse(), Ok(all));
    }

    #[test]
    fn what_makes_no_sense_says_why() {
        let error = |text: &str| text.parse::<Adversary>().unwrap_err().to_string();
        for text in ["", "payload", "-1", "1.5", "18446744073709551616"] {
            assert!(error(text).contains("is no seed"), "{text}: {}", error(text));
        }
        assert!(error("1,").starts_with(r#"no adversary is named """#));
        assert!(error("1,writes=some").starts_with(r#"no adversary is named "writes=some""#));
        assert_eq!(error("1,cqe,cqe"), "cqe is given twice");
        for both in ["1,writes,writes=all", "1,writes=all,cqe,writes"] {
            assert_eq!(error(both), "writes is given twice");
        }
    }
}

//! What is known of the objects that there are.

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Pd,
    Mr,
    Mw,
    Cq,
    Qp,
    Srq,
    Xrcd,
    Ah,
    Dm,
    Uar,
    Umem,
    DevxCq,
    DevxQp,
    DevxRmp,
    DevxMkey,
    DevxGeneral,
}

impl Kind {
    /// Whose numbers are one another's: kinds of which each has numbers that the others have not.
    pub fn numbers(self) -> Self {
        match self {
            Self::DevxCq => Self::Cq,
            Self::DevxQp => Self::Qp,
            Self::DevxRmp => Self::Srq,
            other => other,
        }
    }

    /// The kinds that one command destroys: to uverbs all of DEVX but its memory are objects of one type.
    pub fn of_one_type(self) -> &'static [Self] {
        use Kind::*;
        const DEVX: [Kind; 5] = [DevxCq, DevxQp, DevxRmp, DevxMkey, DevxGeneral];
        const ALL: [Kind; 11] = [Pd, Mr, Mw, Cq, Qp, Srq, Xrcd, Ah, Dm, Uar, Umem];
        let alone = ALL.iter().position(|&kind| kind == self);
        alone.map_or(&DEVX, |at| &ALL[at..=at])
    }

    /// Whether one that is used is not destroyed.
    pub fn is_kept(self) -> bool {
        use Kind::*;
        matches!(self, Pd | Cq | Srq | Xrcd | Dm | Umem | DevxCq | DevxRmp)
    }
}

/// An object.
#[derive(Debug, Clone)]
pub struct Live {
    pub kind: Kind,
    pub handle: u64,
    /// Its number on the device; 0 for none.
    pub number: u32,
    /// Handles of what it uses.
    pub uses: Vec<u64>,
    /// Pages of device memory, from one to another.
    pub pages: (u32, u32),
    /// Of a region: address, length and keys, as a query answers them.
    pub region: [u64; 4],
    /// Whether nobody looks at its memory before it is accessed.
    pub on_demand: bool,
    /// Of a queue pair: its type as verbs number it, and its state.
    pub qp: (u64, u8),
}

impl Live {
    pub fn new(kind: Kind) -> Self {
        let (handle, number, uses) = (0, 0, Vec::new());
        let (pages, region, on_demand, qp) = ((0, 0), [0; 4], false, (0, 0));
        Self { kind, handle, number, uses, pages, region, on_demand, qp }
    }

    pub fn uses(mut self, handles: &[u64]) -> Self {
        self.uses.extend(handles);
        self
    }
}

/// Whether a queue pair may go from one state to another (`enum ib_qp_state`; InfiniBand vol. 1, 10.3.1).
pub fn may_move(from: u8, to: u8) -> bool {
    const RESET: u8 = 0;
    const ERR: u8 = 6;
    matches!(to, RESET | ERR)
        || matches!((from, to), (0, 1) | (1, 1 | 2) | (2, 3) | (3, 3 | 4) | (4, 3 | 4))
}

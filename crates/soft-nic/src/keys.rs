//! Keys of a NIC that stand for parts of regions.

use std::sync::Arc;

use bellpush_nic::NicError;
use bellpush_wire::Rkey;

use crate::SoftNic;
use crate::objects::mkey::{Indirect, MkeyAttr, MwType, PartsAttr};
use crate::objects::mr::Pd;
use crate::record::{Call, Outcome, outside};

impl SoftNic {
    /// Makes a memory window, which stands for nothing until a queue pair binds it by a UMR. Its key
    /// changes its low byte with every bind.
    ///
    /// # Errors
    /// As [`SoftNic::create_mkey`].
    pub fn alloc_mw(&self, pd: &Arc<Pd>, kind: MwType) -> Result<Rkey, NicError> {
        let remote_invalidate = kind == MwType::Two;
        self.create_mkey(pd, MkeyAttr { octowords: 4, remote_invalidate, tag: None })
    }

    /// Makes a key that stands for nothing until a UMR says for which parts of which regions.
    ///
    /// # Errors
    /// [`NicError::Attribute`] on the in-process link, which has no such keys, and for more units
    /// than a UMR can give; [`NicError::Full`].
    pub fn create_mkey(&self, pd: &Arc<Pd>, attr: MkeyAttr) -> Result<Rkey, NicError> {
        let refuse = |what, value, must| Err(NicError::Attribute { what, value, must });
        if self.carries().is_none() {
            return refuse("memory window or indirect key", 1, "on a packet link");
        }
        if !(1..=1 << 16).contains(&attr.octowords) {
            return refuse("key's units of translation", attr.octowords as u64, "1..=65536");
        }
        let MkeyAttr { octowords, remote_invalidate, tag } = attr;
        let create = || {
            let indirect = Indirect::new(octowords, remote_invalidate);
            self.device.mrs.create_indirect(pd, indirect, tag)
        };
        let (pd, octowords) = (pd.number(), octowords as u64);
        let call = || Call::Mkey { pd, octowords, remote_invalidate, tag };
        outside(self.device.recorder.as_ref(), call, create, |key| Outcome::Number(key.0))
    }

    /// Makes a key that stands for parts of regions from the start, and that no UMR changes.
    ///
    /// # Errors
    /// [`NicError::Attribute`] on the in-process link, and for no bytes or more than an address has; [`NicError::Full`].
    pub fn create_parts(&self, pd: &Arc<Pd>, attr: PartsAttr) -> Result<Rkey, NicError> {
        if self.carries().is_none() {
            let (what, must) = ("indirect key", "on a packet link");
            return Err(NicError::Attribute { what, value: 1, must });
        }
        let (pd_number, parts) = (pd.number(), attr.parts.clone());
        let PartsAttr { iova, access, tag, .. } = attr;
        let call = || Call::Parts { pd: pd_number, iova: iova.0, access, tag, parts };
        let create = || self.device.mrs.create_parts(pd, attr);
        outside(self.device.recorder.as_ref(), call, create, |key| Outcome::Number(key.0))
    }

    /// Ends a memory window or a key of [`SoftNic::create_mkey`], with whatever low byte.
    ///
    /// # Errors
    /// [`NicError::NoSuchRegion`].
    pub fn destroy_mkey(&self, key: Rkey) -> Result<(), NicError> {
        let call = || Call::DestroyMkey { key: key.0 };
        let destroy = || self.device.mrs.destroy_indirect(key);
        outside(self.device.recorder.as_ref(), call, destroy, |&()| Outcome::Done)
    }
}

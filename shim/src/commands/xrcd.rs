//! XRC domains.
//!
//! Those of one file are one, within the process that has the device: a domain is of one NIC, and
//! every process has its own.

use std::sync::Arc;

use bellpush_soft_nic::Xrcd;

use super::{Command, Undo, word};
use crate::abi::ids::attr;
use crate::abi::verbs::OpenXrcd;
use crate::context::Object;
use crate::error::Refusal;
use crate::files::file_id;

/// A domain that is open.
pub struct XrcdObj {
    /// The NIC's.
    pub xrcd: Arc<Xrcd>,
}

/// `IB_USER_VERBS_CMD_OPEN_XRCD`, with the rules of `ib_uverbs_open_xrcd` for files.
pub fn open(c: &mut Command<'_>) -> Result<(), Refusal> {
    let OpenXrcd { fd, oflags, .. } = c.request.input(attr::CORE_IN)?;
    let refuse = |value: i32, must| {
        Err(Refusal::Value { what: "XRC domain's open flags", value: value as u32 as u64, must })
    };
    if oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return refuse(oflags, "some of O_CREAT and O_EXCL");
    }
    let create = || c.context.device.nic.create_xrcd();
    let xrcd = if fd == -1 {
        create()
    } else {
        let file = file_id(fd).ok_or_else(|| Refusal::last("fstat"))?;
        let mut domains = c.context.device.xrcds();
        domains.retain(|_, xrcd| xrcd.strong_count() > 0);
        match domains.get(&file).and_then(|xrcd| xrcd.upgrade()) {
            Some(_) if oflags & libc::O_EXCL != 0 => {
                return refuse(oflags, "without O_EXCL: the file's domain is open");
            }
            Some(xrcd) => xrcd,
            None if oflags & libc::O_CREAT == 0 => return Err(Refusal::NoDomain),
            None => {
                let xrcd = create();
                domains.insert(file, Arc::downgrade(&xrcd));
                xrcd
            }
        }
    };
    let handle = c.objects.add(Object::Xrcd(Arc::new(XrcdObj { xrcd })));
    c.undo = Some(Undo::Object(handle));
    c.answer(&word(handle));
    Ok(())
}

/// `UVERBS_METHOD_XRCD_DESTROY`.
pub fn close(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    c.objects.xrcd(handle)?;
    c.context.destroy(c.objects, handle)
}

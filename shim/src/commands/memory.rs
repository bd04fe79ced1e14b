//! Protection domains, memory regions, address handles.

use std::net::Ipv6Addr;
use std::sync::Arc;

use bellpush_mem::{Dma, UserMem};
use bellpush_nic::{Access, AddressVector, Mr, NicAddress};
use bellpush_soft_nic::{MwType, Pd, Reregister};
use bellpush_wire::{Iova, Rkey};
use bytemuck::bytes_of;

use super::{Command, Undo, long, odp, word};
use crate::abi::ids::{UHW_OUT, attr};
use crate::abi::mlx5::CreateAhResp;
use crate::abi::verbs::{AhAttr, AllocMw, CreateAh, RegMr, ReregMr, access};
use crate::context::Object;
use crate::cuda::GpuMem;
use crate::device::Device;
use crate::error::Refusal;

/// A protection domain.
pub struct PdObj {
    /// The NIC's.
    pub pd: Arc<Pd>,
}

/// A memory region.
pub struct MrObj {
    /// The NIC's.
    pub mr: Mr,
    /// Its protection domain.
    pub pd: Arc<PdObj>,
    /// Memory of the process.
    pub user: Option<UserRange>,
    /// Device memory that it is a part of, which it keeps.
    pub _dm: Option<Arc<super::dm::DmObj>>,
}

/// Memory of the process that a region stands for.
#[derive(Debug, Clone, Copy)]
pub struct UserRange {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Whether it must be writable.
    pub write: bool,
    /// Whether it need not be there before it is accessed.
    pub on_demand: bool,
}

/// `IB_USER_VERBS_CMD_ALLOC_PD`.
pub fn alloc_pd(c: &mut Command<'_>) -> Result<(), Refusal> {
    let pd = c.context.device.nic.create_pd()?;
    let number = pd.number();
    let handle = c.objects.add(Object::Pd(Arc::new(PdObj { pd })));
    c.undo = Some(Undo::Object(handle));
    c.answer(&word(handle));
    c.request.put(UHW_OUT, &word(number));
    Ok(())
}

/// `UVERBS_METHOD_PD_DESTROY`.
pub fn destroy_pd(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    c.objects.pd(handle)?;
    c.context.destroy(c.objects, handle)
}

/// `MLX5_IB_METHOD_PD_QUERY`: a protection domain that is imported by its handle.
pub fn query_pd(c: &mut Command<'_>) -> Result<(), Refusal> {
    let number = c.objects.pd(c.request.handle(attr::PD_QUERY_HANDLE)?)?.pd.number();
    c.request.put(attr::PD_QUERY_RESP_PDN, &word(number));
    Ok(())
}

/// What access flags allow, if the NIC has all of it.
pub fn rights(flags: u32) -> Result<Access, Refusal> {
    use access::*;
    let remote = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    let known = LOCAL_WRITE | remote | MW_BIND | ZERO_BASED | ON_DEMAND | HUGETLB;
    if flags & !(known | OPTIONAL) != 0 {
        return Err(Refusal::Unsupported("an access flag"));
    }
    if flags & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && flags & LOCAL_WRITE == 0 {
        let must = "with local write, if a peer may write";
        return Err(Refusal::Value { what: "access", value: flags.into(), must });
    }
    Ok(Access {
        local_write: flags & LOCAL_WRITE != 0,
        remote_write: flags & REMOTE_WRITE != 0,
        remote_read: flags & REMOTE_READ != 0,
        remote_atomic: flags & REMOTE_ATOMIC != 0,
        relaxed_order: flags & RELAXED_ORDERING != 0,
    })
}

/// Memory of the program's.
pub enum Memory {
    /// Of the process.
    Host(UserMem),
    /// Of a GPU.
    Gpu(GpuMem),
}

/// Memory of the program's that a region is to stand for.
pub fn user_memory(start: u64, length: u64, write: bool) -> Result<Memory, Refusal> {
    let bytes =
        usize::try_from(length).map_err(|_| Refusal::Fault { addr: start, bytes: usize::MAX })?;
    if bytes == 0 {
        return Err(Refusal::Value { what: "region's length", value: 0, must: "at least 1" });
    }
    if let Some(mem) = GpuMem::register(start, bytes) {
        return Ok(Memory::Gpu(mem));
    }
    // SAFETY: the program registers the range: what the NIC writes there, it wants written.
    Ok(Memory::Host(unsafe { UserMem::register(start, bytes, write) }?))
}

fn region_memory(range: UserRange, device: &Device) -> Result<Arc<dyn Dma>, Refusal> {
    let UserRange { start, length, write, on_demand } = range;
    if on_demand {
        return Ok(Arc::new(odp::memory(start, length)?));
    }
    Ok(match user_memory(start, length, write)? {
        Memory::Host(mem) => Arc::new(mem),
        Memory::Gpu(mem) => {
            device.driver.keep_to_thread();
            Arc::new(mem)
        }
    })
}

/// The kernel's rule: a region keeps its place within pages.
fn same_offset(start: u64, iova: u64) -> Result<(), Refusal> {
    if (start ^ iova) & 0xfff == 0 {
        return Ok(());
    }
    let must = "at the same offset within a page as its address";
    Err(Refusal::Value { what: "region's iova", value: iova, must })
}

/// `IB_USER_VERBS_CMD_REG_MR`.
pub fn reg_mr(c: &mut Command<'_>) -> Result<(), Refusal> {
    let RegMr { start, length, hca_va, pd_handle, access_flags, .. } =
        c.request.input(attr::CORE_IN)?;
    let pd = c.objects.pd(pd_handle)?.clone();
    let access = rights(access_flags)?;
    let on_demand = access_flags & access::ON_DEMAND != 0;
    let user = UserRange { start, length, write: access.local_write, on_demand };
    same_offset(start, hca_va)?;
    if odp::is_implicit(&user) && hca_va != 0 {
        return Err(Refusal::Value { what: "implicit region's iova", value: hca_va, must: "0" });
    }
    let mem = region_memory(user, &c.context.device)?;
    let mr = c.context.device.nic.register_in(&pd.pd, mem, Iova(hca_va), access)?;
    let region = MrObj { mr, pd, user: Some(user), _dm: None };
    let handle = c.objects.add(Object::Mr(region));
    c.undo = Some(Undo::Object(handle));
    c.answer(bytes_of(&[handle, mr.lkey.0, mr.rkey.0]));
    Ok(())
}

/// `IB_USER_VERBS_CMD_REREG_MR`. The region keeps its keys; a change that cannot be had leaves it as
/// it is.
pub fn rereg_mr(c: &mut Command<'_>) -> Result<(), Refusal> {
    const TRANSLATION: u32 = 1;
    const PD: u32 = 2;
    const ACCESS: u32 = 4;
    let r: ReregMr = c.request.input(attr::CORE_IN)?;
    if r.flags == 0 || r.flags & !(TRANSLATION | PD | ACCESS) != 0 {
        let must = "some of translation, protection domain and access";
        return Err(Refusal::Value {
            what: "re-registration's flags",
            value: r.flags.into(),
            must,
        });
    }
    let old = c.objects.mr(r.mr_handle)?;
    let Some(user) = old.user else {
        return Err(Refusal::Unsupported("device memory registered again"));
    };
    let before = old.mr;
    if odp::is_implicit(&user) {
        return Err(Refusal::Unsupported("an implicit region registered again"));
    }
    let access = if r.flags & ACCESS != 0 { Some(rights(r.access_flags)?) } else { None };
    let pd = if r.flags & PD != 0 { Some(c.objects.pd(r.pd_handle)?.clone()) } else { None };
    let (start, length, iova) = match r.flags & TRANSLATION {
        0 => (user.start, user.length, before.iova.0),
        _ => (r.start, r.length, r.hca_va),
    };
    same_offset(start, iova)?;
    let write = access.map_or(user.write, |access| access.local_write);
    let on_demand = match access {
        Some(_) => r.access_flags & access::ON_DEMAND != 0,
        None => user.on_demand,
    };
    let user = UserRange { start, length, write, on_demand };
    let memory = Some((region_memory(user, &c.context.device)?, Iova(iova)));
    let change = Reregister { pd: pd.as_ref().map(|pd| pd.pd.clone()), memory, access };
    let mr = c.context.device.nic.reregister(before, change)?;
    if let Some(Object::Mr(region)) = c.objects.get_mut(r.mr_handle) {
        (region.mr, region.user) = (mr, Some(user));
        region.pd = pd.unwrap_or_else(|| region.pd.clone());
    }
    c.answer(bytes_of(&[mr.lkey.0, mr.rkey.0]));
    Ok(())
}

/// `UVERBS_METHOD_MR_DESTROY`.
pub fn destroy_mr(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    c.objects.mr(handle)?;
    c.context.destroy(c.objects, handle)
}

/// A memory window.
pub struct MwObj {
    /// Its key, as it was made.
    pub key: Rkey,
    _pd: Arc<PdObj>,
}

/// `IB_USER_VERBS_CMD_ALLOC_MW`.
pub fn alloc_mw(c: &mut Command<'_>) -> Result<(), Refusal> {
    let AllocMw { pd_handle, mw_type, .. } = c.request.input(attr::CORE_IN)?;
    let pd = c.objects.pd(pd_handle)?.clone();
    let kind = match mw_type {
        1 => MwType::One,
        2 => MwType::Two,
        _ => {
            let value = mw_type.into();
            return Err(Refusal::Value { what: "memory window's type", value, must: "1 or 2" });
        }
    };
    let key = c.context.device.nic.alloc_mw(&pd.pd, kind)?;
    let handle = c.objects.add(Object::Mw(MwObj { key, _pd: pd }));
    c.undo = Some(Undo::Object(handle));
    c.answer(bytes_of(&[handle, key.0]));
    Ok(())
}

/// `UVERBS_METHOD_MW_DESTROY`.
pub fn destroy_mw(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    c.objects.mw(handle)?;
    c.context.destroy(c.objects, handle)
}

/// `UVERBS_METHOD_QUERY_MR`.
pub fn query_mr(c: &mut Command<'_>) -> Result<(), Refusal> {
    let mr = c.objects.mr(c.request.handle(attr::QUERY_MR_HANDLE)?)?.mr;
    c.request.put(attr::QUERY_MR_RESP_LKEY, &word(mr.lkey.0));
    c.request.put(attr::QUERY_MR_RESP_RKEY, &word(mr.rkey.0));
    c.request.put(attr::QUERY_MR_RESP_LENGTH, &long(mr.bytes));
    c.request.put(attr::QUERY_MR_RESP_IOVA, &long(mr.iova.0));
    Ok(())
}

/// The path that an address's fields describe.
pub fn path(
    gid: [u8; 16],
    (flow_label, hop_limit, traffic_class): (u32, u8, u8),
    (is_global, sgid_index, port): (u8, u8, u8),
) -> Result<AddressVector, Refusal> {
    if is_global == 0 {
        return Err(Refusal::Value { what: "GRH", value: 0, must: "there: the port is Ethernet" });
    }
    if sgid_index != 0 {
        return Err(Refusal::Value { what: "SGID index", value: sgid_index.into(), must: "0" });
    }
    if port != 1 {
        return Err(Refusal::Value { what: "port", value: port.into(), must: "1" });
    }
    let to = Ipv6Addr::from(gid);
    let to = to.to_ipv4_mapped().map_or(to.into(), std::net::IpAddr::from);
    if to.is_unspecified() || to.is_multicast() {
        let value = u64::from(gid[15]);
        return Err(Refusal::Value { what: "GID", value, must: "a unicast address" });
    }
    Ok(AddressVector {
        flow_label,
        // What 0 asks for is the system's default.
        hop_limit: if hop_limit == 0 { 64 } else { hop_limit },
        traffic_class,
        ..AddressVector::to(NicAddress::Ip(to))
    })
}

/// `IB_USER_VERBS_CMD_CREATE_AH`. The address stands in each WQE; the handle is for the program, and
/// holds its protection domain.
pub fn create_ah(c: &mut Command<'_>) -> Result<(), Refusal> {
    let CreateAh { pd_handle, attr, .. } = c.request.input(attr::CORE_IN)?;
    let pd = c.objects.pd(pd_handle)?.clone();
    let AhAttr { dgid, flow_label, hop_limit, traffic_class, is_global, sgid_index, .. } = attr;
    let route = (flow_label, hop_limit, traffic_class);
    path(dgid, route, (is_global, sgid_index, attr.port_num))?;
    let handle = c.objects.add(Object::Ah(pd));
    c.undo = Some(Undo::Object(handle));
    c.answer(&word(handle));
    // Nothing on this link has a MAC address; one that is made of the IP address looks like one.
    let dmac = [0x02, 0x62, dgid[12], dgid[13], dgid[14], dgid[15]];
    let response_length = size_of::<CreateAhResp>() as u32;
    let response = CreateAhResp { response_length, dmac, reserved: [0; 6] };
    c.request.put(UHW_OUT, bytes_of(&response));
    Ok(())
}

/// `UVERBS_METHOD_AH_DESTROY`.
pub fn destroy_ah(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    c.objects.ah(handle)?;
    c.context.destroy(c.objects, handle)
}
